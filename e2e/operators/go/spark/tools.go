//go:build tools

// Package sparkoperator pins kubeflow's spark-operator: controller and webhook are one command.
// Its own replacements of Kubernetes' modules must be repeated here, they count in the main module only.
package sparkoperator

import _ "github.com/kubeflow/spark-operator/v2/cmd/operator"
