package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/hostfiles"
	"github.com/holdfast-dev/holdfast/internal/observe"
)

func hostFilesCommand() *cobra.Command {
	var node, namespace, directory, kubeconfig string
	cmd := &cobra.Command{
		Use:   "host-files",
		Short: "Keep on a control-plane host the files that etcd's static pod starts from",
		Long: `Keep on a control-plane host the files that etcd's static pod starts from, until told to stop.

A static pod can use neither ConfigMaps nor Secrets, and etcd has to start while there is no API server. So this
command, in a pod of a DaemonSet on each control-plane Node, writes what etcd needs into a directory of the host:

  membership.env               the Node's entry in ConfigMap etcd-membership, which full mode publishes
  peer.pem, peer-ca.crt        certificate with key, and CA, of Secret etcd-peer-NODE
  serving.pem, serving-ca.crt  the same of Secret etcd-serving-NODE

The Secrets carry label ` + hostfiles.Label + `=NODE. What is missing in the cluster, or cannot be right, leaves the
file on the host as it is. etcd reads a renewed certificate by itself, and a CA only when it starts: so a certificate of a
CA that the host does not trust is not written, and no CA is taken off.
deploy/examples/etcd-host has everything around this.`,
		Example: `  holdfast host-files --node master-3 --directory /etc/etcd`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
				return cli.Usage("--node is %q; it is the name of this host's Node", node)
			}
			if directory == "" || namespace == "" {
				return cli.Usage("--directory and --etcd-namespace must not be empty")
			}
			h := hostFiles{node: node, namespace: namespace, directory: directory, out: cmd.OutOrStdout()}
			return h.run(cmd.Context(), kubeconfig)
		},
	}
	f := cmd.Flags()
	f.StringVar(&node, "node", os.Getenv("NODE_NAME"), "name of this host's Node (NODE_NAME)")
	f.StringVar(&directory, "directory", "/etc/etcd", "directory of the host that the files are written to")
	f.StringVar(&namespace, "etcd-namespace", hostenv.Namespace, "namespace of the ConfigMap and of the Secrets")
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; without it, the service account of the pod")
	return cmd
}

// hostFiles writes a host's files whenever one of the objects that they are made of changes.
type hostFiles struct {
	node, namespace, directory string
	out                        io.Writer
	said                       string // the problems that were logged last
}

func (h *hostFiles) run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return cli.Usage("the cluster's address and credentials are not known: %v; set --kubeconfig", err)
	}
	objects, err := cache.New(config, cache.Options{
		DefaultNamespaces: map[string]cache.Config{h.namespace: {}},
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {Field: fields.OneTermEqualSelector("metadata.name", hostenv.Name)},
			&corev1.Secret{}:    {Label: labels.SelectorFromSet(labels.Set{hostfiles.Label: h.node})},
		},
	})
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	wake := func() { observe.Wake(changed) }
	for _, object := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}} {
		informer, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }, DeleteFunc: func(any) { wake() },
		}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- objects.Start(ctx) }()
	if !objects.WaitForCacheSync(ctx) {
		return <-ended
	}
	wake()
	for {
		select {
		case err := <-ended:
			return err
		case <-changed:
		}
		if err := h.sync(ctx, objects); err != nil {
			return err
		}
	}
}

// sync writes what the cluster has now.
func (h *hostFiles) sync(ctx context.Context, from client.Reader) error {
	configMap := &corev1.ConfigMap{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: hostenv.Name}, configMap); client.IgnoreNotFound(err) != nil {
		return err
	}
	list := &corev1.SecretList{}
	if err := from.List(ctx, list, client.InNamespace(h.namespace)); err != nil {
		return err
	}
	secrets := map[string]*corev1.Secret{}
	for i := range list.Items {
		secrets[list.Items[i].Name] = &list.Items[i]
	}
	here, err := hostfiles.Read(h.directory)
	if err != nil {
		return err
	}
	files, problems := hostfiles.Render(h.node, configMap.Data, secrets, here)
	written, err := hostfiles.Write(h.directory, files)
	for _, name := range written {
		fmt.Fprintf(h.out, "wrote %s\n", name)
	}
	if err != nil {
		return err
	}
	var said []string
	for _, problem := range problems {
		said = append(said, "not written: "+problem.Error()+"\n")
	}
	if now := strings.Join(said, ""); now != h.said {
		h.said = now
		fmt.Fprint(h.out, now)
	}
	return nil
}
