/* The files of a region: made whole or not at all, and looked at before they are believed. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

void region_uuid_text(const unsigned char uuid[16], char text[37])
{
    static const char digits[] = "0123456789abcdef";
    char *at = text;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = digits[uuid[i] >> 4];
        *at++ = digits[uuid[i] & 15];
    }
    *at = 0;
}

bool region_uuid_parse(const char *text, unsigned char uuid[16])
{
    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
        text += 4;
    for (int i = 0; i < 16; i++) {
        unsigned value = 0;
        if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
            return false;
        for (int half = 0; half < 2; half++, text++) {
            char c = *text;
            if (c >= '0' && c <= '9')
                value = value * 16 + (unsigned)(c - '0');
            else if (c >= 'a' && c <= 'f')
                value = value * 16 + (unsigned)(c - 'a') + 10;
            else if (c >= 'A' && c <= 'F')
                value = value * 16 + (unsigned)(c - 'A') + 10;
            else
                return false;
        }
        uuid[i] = (unsigned char)value;
    }
    return *text == 0;
}

#define ANEW "stop its processes, remove it and make the partition anew"

bool region_fail(struct berth_error *error, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(error->text, sizeof error->text, format, list);
    va_end(list);
    return false;
}

struct header {
    uint64_t magic;
    uint32_t version, size;
    unsigned char uuid[16];
};

static bool check(const void *bytes, size_t size, const unsigned char uuid[16], uint64_t magic,
                  size_t wanted, struct berth_error *error)
{
    struct header header;
    if (size < sizeof header)
        return region_fail(error, "is damaged (%zu bytes, not %zu); " ANEW, size, wanted);
    memcpy(&header, bytes, sizeof header);
    if (header.magic != magic)
        return region_fail(error, "is not a berth region or is damaged; " ANEW);
    if (header.version != BERTH_VERSION)
        return region_fail(
            error,
            "is of version %u and this library reads version %d; use the libberth.so "
            "that made it, or make the partition anew",
            header.version, (int)BERTH_VERSION);
    if (header.size != wanted || size < wanted)
        return region_fail(error, "is damaged (%zu bytes, not %zu); " ANEW, size, wanted);
    if (uuid != NULL && memcmp(header.uuid, uuid, 16) != 0)
        return region_fail(error,
                           "belongs to another GPU than its name says; remove it and make the "
                           "partition anew");
    return true;
}

bool region_check_limit(const void *bytes, size_t size, const unsigned char uuid[16],
                        struct berth_error *error)
{
    if (!check(bytes, size, uuid, BERTH_LIMIT_MAGIC, sizeof(struct berth_limit_file), error))
        return false;
    const struct berth_limit_file *limit = bytes;
    if (atomic_load(&limit->core_pct) > 100 || memchr(limit->name, 0, sizeof limit->name) == NULL)
        return region_fail(error,
                           "is damaged (a share of %u %%); remove it and make the partition anew",
                           atomic_load(&limit->core_pct));
    return true;
}

bool region_check_use(const void *bytes, size_t size, const unsigned char uuid[16],
                      struct berth_error *error)
{
    if (!check(bytes, size, uuid, BERTH_USE_MAGIC, sizeof(struct berth_use_file), error))
        return false;
    const struct berth_use_file *use = bytes;
    uint32_t last = (uint32_t)(atomic_load(&use->total.tag) & ((1u << BERTH_TAG_SLOT_BITS) - 1));
    if (last > BERTH_SLOTS || atomic_load(&use->slots_seen) > BERTH_SLOTS)
        return region_fail(error, "is damaged (a slot that is not there); " ANEW);
    return true;
}

static void prefix_error(struct berth_error *error, const char *path)
{
    char rest[sizeof error->text];
    memcpy(rest, error->text, sizeof rest);
    snprintf(error->text, sizeof error->text, "%.120s: %.130s", path, rest);
}

/* The name of a file system that several machines share; NULL for any other. */
static const char *remote_system(int fd)
{
    static const struct {
        unsigned long magic;
        const char *name;
    } systems[] = {
        { 0x6969, "NFS" },       { 0xfe534d42, "SMB" },    { 0xff534d42, "CIFS" },
        { 0x00c36400, "Ceph" },  { 0x0bd00bd0, "Lustre" }, { 0x47504653, "GPFS" },
        { 0x5346414f, "AFS" },   { 0x19830326, "BeeGFS" }, { 0x01161970, "GFS2" },
        { 0x7461636f, "OCFS2" },
    };
    struct statfs system;
    if (fstatfs(fd, &system) != 0)
        return NULL;
    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++)
        if ((uint32_t)system.f_type == systems[i].magic)
            return systems[i].name;
    return NULL;
}

/* Maps a whole file, or NULL with a reason; NULL without one where the file is not there. */
static void *map_file(const char *path, int flags, int protection, size_t wanted,
                      struct stat *mapped, struct berth_error *error)
{
    struct stat file;
    const char *remote = NULL;
    error->text[0] = 0;
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT)
            region_fail(error, "%.150s: cannot be opened (%s); check its owner and mode", path,
                        strerror(errno));
        return NULL;
    }
    void *map = MAP_FAILED;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || (size_t)file.st_size < wanted)
        region_fail(error, "%.120s: is damaged (%lld bytes, not %zu); " ANEW, path,
                    (long long)file.st_size, wanted);
    else if ((remote = remote_system(fd)) != NULL)
        region_fail(
            error,
            "%.150s: is on %s, where what one machine writes another may not see, and a lock "
            "does not end with its process; name a folder in memory or on a local disk",
            path, remote);
    else if ((map = mmap(NULL, wanted, protection, MAP_SHARED, fd, 0)) == MAP_FAILED)
        region_fail(error, "%.150s: cannot be mapped (%s)", path, strerror(errno));
    close(fd);
    if (mapped != NULL)
        *mapped = file;
    return map == MAP_FAILED ? NULL : map;
}

bool region_open(struct berth_region *region, const char *folder, const unsigned char uuid[16],
                 struct berth_error *error)
{
    char text[37], path[256];
    struct stat file;
    memset(region, 0, sizeof *region);
    region->slot = -1;
    error->text[0] = 0;
    region_uuid_text(uuid, text);
    if ((size_t)snprintf(path, sizeof path, "%s/%s.limit", folder, text) >= sizeof path)
        return region_fail(error,
                           "the region's folder has too long a name (%zu characters; 200 at most)",
                           strlen(folder));
    snprintf(region->path, sizeof region->path, "%s/%s.use", folder, text);
    region->limit = map_file(path, O_RDONLY, PROT_READ, sizeof *region->limit, NULL, error);
    if (region->limit == NULL)
        return false;
    if (!region_check_limit(region->limit, sizeof *region->limit, uuid, error)) {
        prefix_error(error, path);
        region_close(region);
        return false;
    }
    region->use =
        map_file(region->path, O_RDWR, PROT_READ | PROT_WRITE, sizeof *region->use, &file, error);
    if (region->use == NULL && error->text[0] == 0)
        region_fail(error, "%s: is missing beside its limit; make the partition anew",
                    region->path);
    else if (region->use != NULL &&
             !region_check_use(region->use, sizeof *region->use, uuid, error))
        prefix_error(error, region->path);
    if (error->text[0] != 0) {
        region_close(region);
        return false;
    }
    region->disk = (uint64_t)file.st_dev;
    region->inode = (uint64_t)file.st_ino;
    return true;
}

struct berth_limit_file *region_limit(const char *folder, const unsigned char uuid[16],
                                      struct berth_error *error)
{
    char text[37], path[300];
    region_uuid_text(uuid, text);
    snprintf(path, sizeof path, "%s/%s.limit", folder, text);
    return map_file(path, O_RDWR, PROT_READ | PROT_WRITE, sizeof(struct berth_limit_file), NULL,
                    error);
}

/* A whole file or none: written beside its name, then linked to it. One that exists is kept. */
static bool publish(const char *folder, const char *path, const void *bytes, size_t size,
                    size_t whole, unsigned mode, const char *elsewhere, bool *existed,
                    struct berth_error *error)
{
    char draft[256];
    static shared32 count;
    *existed = access(path, F_OK) == 0;
    if (*existed)
        return true;
    snprintf(draft, sizeof draft, "%.200s/.%u-%llu-%u", folder, (unsigned)getpid(),
             (unsigned long long)clock_ns(), atomic_fetch_add(&count, 1));
    int fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return region_fail(
            error, "%.150s: a region cannot be made there (%s); name another folder with %s",
            folder, strerror(errno), elsewhere);
    /* Space is reserved now: a full /dev/shm must be an error here and no SIGBUS later. */
    int failed = posix_fallocate(fd, 0, (off_t)whole);
    if (failed == 0 && write(fd, bytes, size) != (ssize_t)size)
        failed = errno;
    if (failed == 0 && fchmod(fd, mode) != 0)
        failed = errno;
    close(fd);
    if (failed == 0 && link(draft, path) != 0 && errno != EEXIST)
        failed = errno;
    unlink(draft);
    if (failed != 0)
        region_fail(
            error,
            "%.150s: cannot be made (%s); free some space there or name another folder with %s",
            path, strerror(failed), elsewhere);
    return failed == 0;
}

bool region_make(struct berth_region *region, const char *folder, const unsigned char uuid[16],
                 const char *name, uint64_t mem_bytes, uint32_t core_pct, uint32_t flags,
                 struct berth_error *error)
{
    char text[37], path[256];
    bool existed;
    if (strlen(folder) > 200)
        return region_fail(error,
                           "the region's folder has too long a name (%zu characters; 200 at most)",
                           strlen(folder));
    region_uuid_text(uuid, text);
    struct berth_limit_file limit = { .magic = BERTH_LIMIT_MAGIC,
                                      .version = BERTH_VERSION,
                                      .size = sizeof limit,
                                      .made_ns = clock_ns() };
    memcpy(limit.uuid, uuid, 16);
    strncpy(limit.name, name, sizeof limit.name - 1);
    atomic_store(&limit.mem_bytes, mem_bytes);
    atomic_store(&limit.core_pct, core_pct);
    atomic_store(&limit.flags, flags);
    struct header head = { BERTH_USE_MAGIC, BERTH_VERSION, sizeof(struct berth_use_file), { 0 } };
    memcpy(head.uuid, uuid, 16);

    const char *elsewhere = flags & BERTH_AGENT ? "BERTH_ROOT" : "BERTH_REGION";
    /* mkdir takes the parent directory's lock even if the folder exists, so check first. */
    if (access(folder, F_OK) != 0 && mkdir(folder, flags & BERTH_AGENT ? 0755 : 0700) != 0 &&
        errno != EEXIST)
        return region_fail(error, "%.150s: cannot be made (%s); name another folder with %s",
                           folder, strerror(errno), elsewhere);
    /* The use file first, so that where there is a limit both are there; the maker opens it to its
       users afterwards. */
    snprintf(path, sizeof path, "%s/%s.use", folder, text);
    if (!publish(folder, path, &head, sizeof head, sizeof(struct berth_use_file), 0600, elsewhere,
                 &existed, error))
        return false;
    snprintf(path, sizeof path, "%s/%s.limit", folder, text);
    if (!publish(folder, path, &limit, sizeof limit, sizeof limit,
                 flags & BERTH_AGENT ? 0644 : 0600, elsewhere, &existed, error) ||
        !region_open(region, folder, uuid, error))
        return false;
    const struct berth_limit_file *has = region->limit;
    if (!existed || (atomic_load(&has->flags) & BERTH_AGENT) ||
        (atomic_load(&has->mem_bytes) == mem_bytes && atomic_load(&has->core_pct) == core_pct &&
         atomic_load(&has->flags) == flags))
        return true;
    region_reap(region);
    for (uint32_t i = 0; i < atomic_load(&region->use->slots_seen) && i < BERTH_SLOTS; i++)
        if (atomic_load(&region->use->slots[i].state) != 0)
            return true;
    struct berth_limit_file *ours = region_limit(folder, uuid, error);
    if (ours != NULL) {
        atomic_store(&ours->mem_bytes, mem_bytes);
        atomic_store(&ours->core_pct, core_pct);
        atomic_store(&ours->flags, flags);
        munmap(ours, sizeof limit);
    }
    error->text[0] = 0;
    return true;
}
