//go:build tools

// Package autoscalers names what build_server.sh builds: Karpenter with its kwok provider, as its module has it.
package autoscalers

import _ "sigs.k8s.io/karpenter/kwok"
