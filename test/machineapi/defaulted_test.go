package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	mapiwebhooks "github.com/openshift/machine-api-operator/pkg/webhooks"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-base/featuregate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

var update = flag.Bool("update", false, "write the recording anew")

// asked is one case: Machines, and what the webhooks make of them.
type asked struct {
	Name     string
	Machines []json.RawMessage
	Refused  string // what the validating webhook says of the first that it refuses
}

// TestDefaulted holds the recording of what machine-api-operator's webhooks make of Machines on AWS against these webhooks. internal/cpms
// writes the Machines, as Holdfast tries them in a dry run, and compares with the recording.
func TestDefaulted(t *testing.T) {
	const given, recording = "../../internal/cpms/testdata/trials.jsonl", "../../internal/cpms/testdata/defaulted.jsonl"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	onAWS(t)
	must(machinev1beta1.Install(clientgoscheme.Scheme))
	defaulter, err := mapiwebhooks.NewMachineDefaulter()
	must(err)
	validator, err := mapiwebhooks.NewMachineValidator(allSecrets{}, featuregate.NewFeatureGate())
	must(err)
	ask := func(webhook *admission.Webhook, machine []byte) admission.Response {
		return webhook.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			UID: "1", Namespace: namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: machine},
		}})
	}

	raw, err := os.ReadFile(given)
	must(err)
	var got bytes.Buffer // a line for each case
	for d := json.NewDecoder(bytes.NewReader(raw)); d.More(); {
		var c asked
		must(d.Decode(&c))
		for i, m := range c.Machines {
			response := ask(defaulter, m)
			if !response.Allowed {
				t.Fatalf("%s: the defaulter refuses it: %v", c.Name, response.Result)
			}
			if len(response.Patch) > 0 {
				patch, err := jsonpatch.DecodePatch(response.Patch)
				must(err)
				m, err = patch.Apply(m)
				must(err)
			}
			if response := ask(validator, m); !response.Allowed && c.Refused == "" {
				c.Refused = response.Result.Message
			}
			var ordered any // a patch writes keys in any order
			must(json.Unmarshal(m, &ordered))
			c.Machines[i], err = json.Marshal(ordered)
			must(err)
		}
		must(json.NewEncoder(&got).Encode(c))
	}
	if *update {
		must(os.WriteFile(recording, got.Bytes(), 0o644))
	}
	if want, err := os.ReadFile(recording); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the webhooks answer otherwise than recorded (-update writes it anew): %v", err)
	}
}

// allSecrets has every Secret that the validator asks for.
type allSecrets struct{ client.Client }

func (allSecrets) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// onAWS serves what the webhooks read of the cluster when they are made: it is on AWS.
func onAWS(t *testing.T) {
	t.Helper()
	infrastructure := configv1.Infrastructure{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}, Status: configv1.InfrastructureStatus{
		InfrastructureName: "demo",
		PlatformStatus:     &configv1.PlatformStatus{Type: configv1.AWSPlatformType, AWS: &configv1.AWSPlatformStatus{Region: "r"}},
	}}
	mux := http.NewServeMux()
	for path, object := range map[string]any{
		"infrastructures": infrastructure,
		"dnses":           configv1.DNS{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}},
	} {
		mux.HandleFunc("GET /apis/config.openshift.io/v1/"+path+"/cluster", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(object); err != nil {
				t.Error(err)
			}
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["aws"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["aws"] = &clientcmdapi.Context{Cluster: "aws"}
	config.CurrentContext = "aws"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", file)
}
