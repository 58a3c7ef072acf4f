package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/controller"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
)

// clientPort is where etcd serves clients unless it is told otherwise.
const clientPort = "2379"

// discover are etcd's client URLs to begin with where none is given: clientPort of every control-plane
// Node, member or not, in order. Who answers there has to prove itself by its certificate.
func discover(ctx context.Context, api client.Reader) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var urls []string
	for _, label := range controller.NodeLabels() {
		var list corev1.NodeList
		if err := api.List(ctx, &list, client.HasLabels{label}); err != nil {
			return nil, fmt.Errorf("list Nodes with label %s to find etcd: %w; or set --endpoints", label, err)
		}
		for i := range list.Items {
			for _, address := range machineapi.Node(&list.Items[i]).Addresses {
				urls = append(urls, "https://"+net.JoinHostPort(address.String(), clientPort))
			}
		}
	}
	if len(urls) == 0 {
		return nil, usage("no control-plane Node has an address at which etcd could be found; set --endpoints")
	}
	slices.Sort(urls)
	return slices.Compact(urls), nil
}
