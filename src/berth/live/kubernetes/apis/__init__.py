"""The kubelet's published gRPC interfaces as messages: the `.proto` files are written here, `make apis` compiles them.

Names, field numbers and packages are those that Kubernetes publishes (`k8s.io/kubelet/pkg/apis`), since they go over
the wire; `services` says which messages each call takes.
"""
