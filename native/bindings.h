/* What holds physical memory besides handles and mappings: tiles of sparse arrays, and multicast
   objects that it is bound to. */
#ifndef BERTH_BINDINGS_H
#define BERTH_BINDINGS_H

/* A sparse array or a multicast object is gone: what it held is dropped. */
void bindings_drop_all(const void *holder);

#endif
