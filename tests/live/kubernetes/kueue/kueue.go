//go:build tools

// Package kueue names what build_server.sh builds: Kueue's own controller, as its module has it.
package kueue

import _ "sigs.k8s.io/kueue/cmd/kueue"
