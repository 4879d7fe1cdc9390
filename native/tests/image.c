/* What an image says of itself, read with nothing behind it that may be touched:
   `image FILE` prints the bytes that FILE tells, whole from memory and from the file, and fails if
   any shorter part of it ends the process or tells more. */
#define _GNU_SOURCE
#include "../image.c"

#include "claim.h"

#include <stdlib.h>
#include <sys/mman.h>

int main(int count, char **words)
{
    struct stat file;
    int fd = count == 2 ? open(words[1], O_RDONLY | O_CLOEXEC) : -1;
    CHECK(fd >= 0 && fstat(fd, &file) == 0);
    size_t size = (size_t)file.st_size, space = (size + 4095) / 4096 * 4096;
    char *bytes = malloc(size + 1);
    CHECK(bytes != NULL && read(fd, bytes, size) == (ssize_t)size);
    char *pages =
        mmap(NULL, space + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && munmap(pages + space, 4096) == 0);
    uint64_t whole = 0;
    for (size_t part = 0; part <= size; part++) {
        memcpy(pages + space - part, bytes, part);
        uint64_t told = image_least_bytes(pages + space - part);
        CHECK(part == size || told <= image_file_least_bytes(words[1]));
        whole = told;
    }
    CHECK(image_least_bytes(NULL) == 0 && image_least_bytes((void *)8) == 0);
    CHECK(whole == image_file_least_bytes(words[1]));
    printf("%llu\n", (unsigned long long)whole);
    return 0;
}
