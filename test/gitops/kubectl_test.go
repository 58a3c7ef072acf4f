package gitops_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/test/gitops"
)

func TestKubectl(t *testing.T) {
	c := gitops.Start(t)
	serverSide := []string{"--server-side", "--force-conflicts"}
	gitops.Run(t, c,
		gitops.Tool{
			Name:      "kubectl apply",
			Manifests: gitops.Manifests(),
			Sync:      c.Kubectl(gitops.GitOps, "apply"),
			Drifted:   c.KubectlDiff(gitops.GitOps),
		},
		gitops.Tool{
			Name:      "kubectl apply --server-side",
			Manifests: gitops.Manifests(),
			Sync:      c.Kubectl(gitops.GitOps, append([]string{"apply"}, serverSide...)...),
			Drifted:   c.KubectlDiff(gitops.GitOps, serverSide...),
		},
		gitops.Tool{
			Name:      "kubectl replace",
			Manifests: gitops.Replaced(),
			Sync:      c.Kubectl(gitops.GitOps, "replace"),
			Drifted:   c.KubectlDiff(gitops.GitOps),
			// It takes the finalizer out where Git has none, and that is refused.
			Refused: []gitops.Manifest{gitops.NoHooks, gitops.OwnHook},
		},
	)
}
