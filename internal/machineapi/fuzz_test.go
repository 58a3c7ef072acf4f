package machineapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// FuzzEvidence: what is read as evidence is written so that it reads the same, and half of one is none.
func FuzzEvidence(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"machineUID":"u-1","machine":"m","memberIDs":["8e9e05c52164694d"],"peerAddresses":["10.0.0.1","::ffff:10.0.0.2"]}`,
		`{"machineUID":"u-1","memberIDs":["0"]}`, `{"machineUID":"u-1","memberIDs":["1"],"peerAddresses":["fe80::1%eth0"]}`, `{"memberIDs":["1","g"]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		e, err := machineapi.ParseEvidence(value)
		if err != nil {
			if diff := cmp.Diff(quorum.Evidence{}, e, compareAddrs); diff != "" {
				t.Errorf("evidence with an error: %s", diff)
			}
			return
		}
		again, err := machineapi.ParseEvidence(machineapi.FormatEvidence(e))
		if diff := cmp.Diff(e, again, compareAddrs); err != nil || diff != "" {
			t.Errorf("%v: %s", err, diff)
		}
		records, err := machineapi.ParseRecords(machineapi.FormatRecords([]quorum.Evidence{e}))
		if err != nil || len(records) == 0 {
			t.Errorf("as records: %v, %v", records, err)
		}
	})
}

// FuzzInstallConfig: a number of voters is small, and an error does not show the document.
func FuzzInstallConfig(f *testing.F) {
	for _, seed := range []string{
		"", "controlPlane:\n  replicas: 3\n", "controlPlane: {replicas: 2}\narbiter: {replicas: 1}", "controlPlane: {replicas: \"3\"}",
		"controlPlane: [", "controlPlane: {replicas: 9999999999999999999999}", "controlPlane: {replicas: -1}", "controlPlane: {replicas: .nan}", "controlPlane: &a {replicas: *a}", "a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]",
	} {
		f.Add(seed)
	}
	const secret = "pull-secret-of-somebody"
	f.Fuzz(func(t *testing.T, text string) {
		n, err := machineapi.DesiredReplicas(text)
		if err == nil && (n < 1 || n > 198) {
			t.Errorf("%d voters", n)
		}
		if _, err := machineapi.DesiredReplicas(text + "\npullSecret: " + secret + "\n"); err != nil && strings.Contains(err.Error(), secret) && !strings.Contains(text, secret) {
			t.Errorf("the error shows the document: %v", err)
		}
	})
}

// FuzzCRD: a CRD of any shape is read or refused, the same each time.
func FuzzCRD(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"spec":{"versions":[{"served":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		`{"spec":{"versions":[{"served":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"properties":{"spec":{"properties":{"lifecycleHooks":{"properties":{"preDrain":{"maxItems":1,"items":{"properties":{"name":{"type":"string","pattern":"("},"owner":{"enum":["a"]}}}}}}}}}}}}]}}`,
		`{"spec":{"preserveUnknownFields":true,"versions":[{"served":false,"subresources":{"status":{}}}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		loses, err := machineapi.LosesHooks(raw)
		again, errAgain := machineapi.LosesHooks(raw)
		if loses != again || (err == nil) != (errAgain == nil) || loses && err != nil {
			t.Errorf("%t (%v), then %t (%v)", loses, err, again, errAgain)
		}
	})
}
