/* How large a module is at least, by its image. */
#ifndef BERTH_IMAGE_H
#define BERTH_IMAGE_H

#include <stdint.h>

/* The bytes of a module's global variables on the card, by an image in memory or in a file: a
   cubin, or a fat binary of cubins that are not compressed. 0 where the image does not tell, as
   PTX does not. */
uint64_t image_least_bytes(const void *image);
uint64_t image_file_least_bytes(const char *path);

#endif
