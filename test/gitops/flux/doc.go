// Package flux runs the matrix with Flux's engine, as kustomize-controller uses it.
package flux
