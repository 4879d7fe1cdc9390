"""One node of a cluster: pods get their parts of its GPUs from the kubelet, and what they use of them is looked at.

device_plugin   for kubelets without dynamic resource allocation: units, and limits made just before a start
claims          for those with it: claims prepared as CDI devices, slices published
allotments      what was given to which pod, on disk and as regions; one for both of them
agent           use by pod, profiles, history, and whether the isolation is really there
"""
