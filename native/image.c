/* How large a module is at least, by its image: what its global variables take. Its code and
   constants are left out, since a driver may load them late.

   An image is given without its size and may be anything. So it is read through a pipe, to which
   the kernel writes no more than there is: nothing that is malformed can end the program. */
#define _GNU_SOURCE
#include "image.h"
#include "turn.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CUDA_MACHINE = 190,
    FATTEST = 4096, /* bytes of a header, sections and entries: more is not looked at */
    KIND_CUBIN = 2
};
#define CUBIN_MAGIC 0x464c457fu
#define FAT_WRAPPER_MAGIC 0x466243b1u
#define FAT_MAGIC 0xba55ed50u
#define FAT_COMPRESSED 0xe000ull /* by any of the ways that are known */

struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
    void *name;
};
struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};
struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t arch, name, name_bytes;
    uint64_t flags, zero, decompressed_bytes;
};

/* Where an image is: a file, or memory that is read through a pipe. */
struct source {
    int file, in, out;
    const char *memory;
};

static bool read_at(const struct source *source, uint64_t offset, void *to, size_t bytes)
{
    if (source->memory == NULL)
        return pread(source->file, to, bytes, (off_t)offset) == (ssize_t)bytes;
    const char *from = source->memory + offset;
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < 4096 ? bytes - done : 4096;
        ssize_t sent = write(source->in, from + done, part);
        if (sent <= 0 || read(source->out, (char *)to + done, (size_t)sent) != sent)
            return false;
        done += (size_t)sent;
    }
    return true;
}

static uint64_t cubin_bytes(const struct source *source, uint64_t at)
{
    Elf64_Ehdr head;
    Elf64_Shdr names, section;
    uint64_t sum = 0;
    if (!read_at(source, at, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != CUDA_MACHINE ||
        head.e_shentsize != sizeof section || head.e_shstrndx >= head.e_shnum ||
        !read_at(source, at + head.e_shoff + (uint64_t)head.e_shstrndx * sizeof names, &names,
                 sizeof names))
        return 0;
    for (unsigned i = 0; i < head.e_shnum && i < FATTEST; i++) {
        static const char global[] = ".nv.global";
        char name[sizeof global];
        if (!read_at(source, at + head.e_shoff + (uint64_t)i * sizeof section, &section,
                     sizeof section))
            return 0;
        if ((section.sh_flags & SHF_ALLOC) == 0 ||
            !read_at(source, at + names.sh_offset + section.sh_name, name, sizeof name) ||
            memcmp(name, global, sizeof global - 1) != 0 ||
            (name[sizeof global - 1] != 0 && name[sizeof global - 1] != '.') ||
            section.sh_size > UINT64_MAX / 4 - sum)
            continue;
        sum += section.sh_size;
    }
    return sum;
}

/* The smallest of a fat binary's cubins, since which of them is loaded only the driver knows. */
static uint64_t fat_bytes(const struct source *source)
{
    struct fat_header head;
    struct fat_entry entry;
    uint64_t least = UINT64_MAX;
    if (!read_at(source, 0, &head, sizeof head) || head.header_bytes < sizeof head)
        return 0;
    uint64_t at = head.header_bytes, end = at + head.bytes;
    for (unsigned i = 0; at < end && i < FATTEST; i++) {
        if (!read_at(source, at, &entry, sizeof entry) || entry.kind != KIND_CUBIN ||
            (entry.flags & FAT_COMPRESSED) != 0 ||
            entry.header_bytes < offsetof(struct fat_entry, zero))
            return 0;
        uint64_t bytes = cubin_bytes(source, at + entry.header_bytes);
        least = bytes < least ? bytes : least;
        if (entry.bytes == 0 || entry.bytes > end - at)
            return 0;
        at += entry.header_bytes + entry.bytes;
    }
    return least != UINT64_MAX ? least : 0;
}

/* What an image begins with, 0 where that is none of those that are known. An image of text may end
   at any byte, so that each is read only after those before it were right. */
static uint32_t magic_of(const struct source *source)
{
    static const uint32_t known[] = { CUBIN_MAGIC, FAT_MAGIC, FAT_WRAPPER_MAGIC };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        unsigned at = 0;
        for (unsigned char byte; at < 4 && read_at(source, at, &byte, 1); at++)
            if (byte != (known[i] >> 8 * at & 0xff))
                break;
        if (at == 4)
            return known[i];
    }
    return 0;
}

static uint64_t source_bytes(struct source *source)
{
    struct fat_wrapper wrapper;
    uint32_t magic = magic_of(source);
    if (magic == FAT_WRAPPER_MAGIC && source->memory != NULL &&
        read_at(source, 0, &wrapper, sizeof wrapper) && wrapper.data != NULL) {
        source->memory = wrapper.data;
        magic = magic_of(source);
    }
    return magic == FAT_MAGIC     ? fat_bytes(source)
           : magic == CUBIN_MAGIC ? cubin_bytes(source, 0)
                                  : 0;
}

uint64_t image_least_bytes(const void *image)
{
    KEEPS_ERRNO;
    int ends[2];
    if (image == NULL || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return 0;
    struct source source = { .file = -1, .out = ends[0], .in = ends[1], .memory = image };
    uint64_t bytes = source_bytes(&source);
    close(ends[0]);
    close(ends[1]);
    return bytes;
}

uint64_t image_file_least_bytes(const char *path)
{
    struct stat file;
    KEEPS_ERRNO;
    CLOSED int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    struct source source = { .file = fd, .in = -1, .out = -1 };
    bool regular = fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
    return regular ? source_bytes(&source) : 0;
}
