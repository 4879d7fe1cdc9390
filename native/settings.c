/* What the environment says: read once, at the start. A program that runs with more rights than its
   user (setuid) does not listen to it: its limits are the agent's, and it writes to no file that
   the user names. */
#define _GNU_SOURCE
#include "settings.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AGENT_FOLDER "/run/berth/region"
#define LOG_BYTES (16ll << 20) /* a program that is refused for ever must not fill a disk */

struct settings settings;

static bool parse_number(const char **at, uint64_t most, uint64_t *value)
{
    const char *digit = *at;
    *value = 0;
    while (*digit >= '0' && *digit <= '9' && *value <= most)
        *value = *value * 10 + (uint64_t)(*digit++ - '0');
    bool good = digit != *at && *value >= 1 && *value <= most;
    *at = digit;
    return good;
}

/* `4096` for every GPU, or a list by index or UUID: `0:4096,GPU-…:8192`. */
bool settings_parse(struct setting *setting, const char *variable, const char *text, uint64_t most,
                    char *wrong, size_t wrong_size)
{
    memset(setting, 0, sizeof *setting);
    setting->given = true;
    const char *at = text;
    if (strchr(text, ':') == NULL && parse_number(&at, most, &setting->value) && *at == 0)
        return true;
    setting->per_device = true;
    for (at = text; strchr(text, ':') != NULL && setting->count < MAX_DEVICES;) {
        const char *colon = strchr(at, ':');
        char key[48];
        uint64_t index = 0;
        if (colon == NULL || (size_t)(colon - at) >= sizeof key || colon == at)
            break;
        memcpy(key, at, (size_t)(colon - at));
        key[colon - at] = 0;
        const char *rest = key;
        __typeof__(&setting->items[0]) item = &setting->items[setting->count];
        item->by_uuid = region_uuid_parse(key, item->uuid);
        if (!item->by_uuid && strcmp(key, "0") != 0 &&
            (!parse_number(&rest, MAX_DEVICES - 1, &index) || *rest != 0))
            break;
        item->index = (int)index;
        at = colon + 1;
        if (!parse_number(&at, most, &item->value))
            break;
        for (int i = 0; i < setting->count; i++)
            if (item->by_uuid == setting->items[i].by_uuid &&
                (item->by_uuid ? memcmp(item->uuid, setting->items[i].uuid, 16) == 0
                               : item->index == setting->items[i].index))
                goto malformed;
        setting->count++;
        if (*at == 0)
            return true;
        if (*at++ != ',')
            break;
    }
malformed:
    snprintf(wrong, wrong_size,
             "%s='%.60s' is not a limit: a whole number from 1 to %llu, or a list of GPUs such as "
             "0:%s,1:%s",
             variable, text, (unsigned long long)most, most == 100 ? "30" : "4096",
             most == 100 ? "70" : "8192");
    return false;
}

bool settings_for(const struct setting *setting, int index, const unsigned char uuid[16],
                  uint64_t *value)
{
    *value = setting->value;
    if (!setting->per_device)
        return true;
    for (int i = 0; i < setting->count; i++)
        if (setting->items[i].by_uuid ? memcmp(setting->items[i].uuid, uuid, 16) == 0
                                      : setting->items[i].index == index) {
            *value = setting->items[i].value;
            return true;
        }
    return false;
}

static bool holds_limits(const char *folder, bool *by_agent)
{
    DIR *list = opendir(folder);
    bool found = false;
    if (list == NULL)
        return false;
    for (struct dirent *item; (item = readdir(list)) != NULL;) {
        size_t length = strlen(item->d_name);
        if (length != 42 || strcmp(item->d_name + 36, ".limit") != 0)
            continue;
        struct berth_limit_file limit;
        CLOSED int fd =
            openat(dirfd(list), item->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        ssize_t size = fd < 0 ? -1 : read(fd, &limit, sizeof limit);
        found = true;
        /* One that cannot be read is taken for the agent's: what it says is found out when its GPU
           is used. */
        if (size != (ssize_t)sizeof limit || limit.magic != BERTH_LIMIT_MAGIC ||
            (atomic_load(&limit.flags) & BERTH_AGENT))
            *by_agent = true;
    }
    closedir(list);
    return found;
}

void settings_read(void)
{
    const char *mem = secure_getenv("BERTH_GPU_MEM_MIB"),
               *core = secure_getenv("BERTH_GPU_CORE_PCT");
    const char *folder = secure_getenv("BERTH_REGION"), *log = secure_getenv("BERTH_LOG"),
               *burst = secure_getenv("BERTH_GPU_BURST");
    const char *priority = secure_getenv("BERTH_GPU_PRIORITY");
    struct stat file;
    bool named = folder != NULL && *folder != 0;

    if (log != NULL && strlen(log) < sizeof settings.log_path)
        strcpy(settings.log_path, log);
    /* A region mounted by the node agent overrides the environment. */
    if (stat(AGENT_FOLDER, &file) == 0)
        folder = AGENT_FOLDER, named = true;
    if (!named && mem == NULL && core == NULL && priority == NULL)
        return;

    settings.active = true;
    if (named && folder[0] != '/')
        snprintf(settings.wrong, sizeof settings.wrong,
                 "BERTH_REGION='%.100s' is not the name of a folder from the root; begin it with /",
                 folder);
    else if (named && strlen(folder) > 200)
        snprintf(settings.wrong, sizeof settings.wrong,
                 "BERTH_REGION is too long (%zu characters; 200 at most)", strlen(folder));
    else if (named)
        strcpy(settings.folder, folder);
    else { /* one container or login: one pid namespace and user */
        unsigned long long space =
            stat("/proc/self/ns/pid", &file) == 0 ? (unsigned long long)file.st_ino : 0;
        snprintf(settings.folder, sizeof settings.folder, "%s/berth-%u-%llu",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (unsigned)getuid(), space);
    }

    bool by_agent = false,
         has_limits = settings.folder[0] != 0 && holds_limits(settings.folder, &by_agent);
    if (settings.folder[0] != 0 && lstat(settings.folder, &file) == 0 &&
        (!S_ISDIR(file.st_mode) || (!named && file.st_uid != getuid())))
        snprintf(settings.wrong, sizeof settings.wrong,
                 "%.180s is not a folder of this user's; name another with BERTH_REGION",
                 settings.folder);
    settings.made_by_agent = by_agent;
    if (by_agent)
        mem = core = priority = NULL; /* the agent's word stands, whatever the container says */
    char *wrong = settings.wrong;
    if (mem != NULL && *wrong == 0)
        settings_parse(&settings.mem_mib, "BERTH_GPU_MEM_MIB", mem, 1ull << 30, wrong,
                       sizeof settings.wrong);
    if (core != NULL && *wrong == 0)
        settings_parse(&settings.core_pct, "BERTH_GPU_CORE_PCT", core, 100, wrong,
                       sizeof settings.wrong);
    if (burst != NULL && *wrong == 0 && strcmp(burst, "0") != 0 && strcmp(burst, "1") != 0)
        snprintf(wrong, sizeof settings.wrong, "BERTH_GPU_BURST='%.60s' is neither 0 nor 1", burst);
    settings.priority = priority == NULL                ? 0
                        : strcmp(priority, "high") == 0 ? BERTH_HIGH
                        : strcmp(priority, "low") == 0  ? BERTH_LOW
                                                        : 0;
    if (priority != NULL && *wrong == 0 && settings.priority == 0 &&
        strcmp(priority, "normal") != 0)
        snprintf(wrong, sizeof settings.wrong,
                 "BERTH_GPU_PRIORITY='%.60s' is not a priority; there are high, normal and low",
                 priority);
    settings.burst = burst != NULL && strcmp(burst, "1") == 0;
    if (*wrong == 0 && !has_limits && mem == NULL && core == NULL && priority == NULL)
        snprintf(
            wrong, sizeof settings.wrong,
            access(settings.folder, R_OK | X_OK) != 0 && errno == EACCES
                ? "%.150s is not open to this user; make the partition with --owner or --group"
                : "%.150s has no limits in it; make the partition first, or set BERTH_GPU_MEM_MIB",
            settings.folder);
    if (*wrong != 0)
        settings_fail(wrong);
}

void settings_fail(const char *why)
{
    if (why != settings.wrong)
        snprintf(settings.wrong, sizeof settings.wrong, "%s", why);
    atomic_store(&settings.no_gpu, 1);
    log_line("no GPU: %s", settings.wrong);
}

void log_line(const char *format, ...)
{
    char line[600];
    if (settings.log_path[0] == 0)
        return;
    KEEPS_ERRNO;
    int start = snprintf(line, sizeof line, "berth[%d] ", (int)getpid());
    va_list list;
    va_start(list, format);
    int size = vsnprintf(line + start, sizeof line - (size_t)start - 1, format, list);
    va_end(list);
    size = start + (size < (int)sizeof line - start - 2 ? size : (int)sizeof line - start - 2);
    line[size] = '\n';
    CLOSED int fd = open(settings.log_path,
                         O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    if (fd >= 0 && lseek(fd, 0, SEEK_END) < LOG_BYTES) {
        ssize_t ignored = write(fd, line, (size_t)size + 1);
        (void)ignored;
    }
}
