// Package argocd runs the matrix with Argo CD's engine, gitops-engine, and with Argo CD's own
// comparison, which is where ignoreDifferences are.
package argocd
