/* Stays with one attempt of a job of the local queue: starts it at most once, waits for it, and
   writes down how it ended. `berth-shim FOLDER`, with the file `order` in the folder
   (`read_order`).

   lock    held as long as this process lives
   shim    its pid and start time
   began   pid and start time of the job's process, linked by that process in the moment before it
           becomes the program. Whoever links first decides: a broker that gives the attempt up
           takes the name, and nothing is run.
   limit   the job is ended so long after it began, and killed so long after that, ms; there is none
           without a time limit and while the job is suspended. After SIGCHLD it is read anew.
   expired whoever makes this file sends SIGTERM at the limit: this process or a broker
   exit    how it ended, written aside, synced and renamed; after that the job's daemons are killed

   The broker may die and come back at any time; nothing here talks to it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST_ORDER = 8 << 20, DAEMONS_MS = 5000, LONGEST_WAIT_MS = 60000 };

struct order {
    long uid, gid; /* -1: as this process */
    const char *folder, *out, *err, *cgroup;
    bool out_is_ours; /* made here, by its owner's broker, and given to the user */
    char **argv, **env;
};

static long long boot_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* The beginning of a file as text. */
static bool read_text(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, room - 1);
    if (fd >= 0)
        close(fd);
    if (size <= 0)
        return false;
    text[size] = 0;
    return true;
}

/* When a process started, in the kernel's ticks: with its pid, its name for as long as the machine
   runs. 0: there is none. */
static unsigned long long start_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_text(path, text, sizeof text))
        return 0;
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

static pid_t parent_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_text(path, text, sizeof text))
        return 0;
    const char *at = strrchr(text, ')');
    return at == NULL || strlen(at) < 5 ? 0 : (pid_t)atoi(at + 4);
}

/* A file whole or not at all; `durable` also after a loss of power. */
static bool write_whole(const char *name, const char *text, bool durable)
{
    char draft[32];
    snprintf(draft, sizeof draft, ".%s", name);
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    size_t size = strlen(text);
    bool good = write(fd, text, size) == (ssize_t)size && (!durable || fsync(fd) == 0);
    good = close(fd) == 0 && good && rename(draft, name) == 0;
    if (good && durable) {
        int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        good = here >= 0 && fsync(here) == 0;
        if (here >= 0)
            close(here);
    }
    return good;
}

/* Words that end with a zero byte each: version, uid, gid, folder, out, err, whose the output files
   are, file of the cgroup's processes, number of arguments, arguments, number of variables,
   variables. */
static bool read_order(struct order *order)
{
    int fd = open("order", O_RDONLY | O_CLOEXEC);
    struct stat file;
    if (fd < 0 || fstat(fd, &file) != 0 || file.st_size < 16 || file.st_size > LARGEST_ORDER)
        return false;
    size_t size = (size_t)file.st_size, had = 0;
    char *text = malloc(size);
    for (ssize_t got = 1; text != NULL && had < size && got > 0; had += got > 0 ? (size_t)got : 0)
        got = read(fd, text + had, size - had);
    close(fd);
    if (text == NULL || had != size || text[size - 1] != 0)
        return false;
    size_t words = 0, at = 0;
    for (size_t i = 0; i < size; i++)
        words += text[i] == 0;
    char **word = calloc(words + 3, sizeof *word), **list = calloc(words + 3, sizeof *list);
    if (word == NULL || list == NULL || words < 11)
        return false;
    for (size_t i = 0; i < words; i++, at += strlen(text + at) + 1)
        word[i] = text + at;
    if (strcmp(word[0], "1") != 0)
        return false;
    *order = (struct order){ .uid = atol(word[1]),
                             .gid = atol(word[2]),
                             .folder = word[3],
                             .out = word[4],
                             .err = word[5],
                             .out_is_ours = strcmp(word[6], "ours") == 0,
                             .cgroup = word[7] };
    size_t arguments = (size_t)atol(word[8]);
    if (arguments < 1 || 9 + arguments >= words)
        return false;
    size_t variables = (size_t)atol(word[9 + arguments]);
    if (10 + arguments + variables != words)
        return false;
    order->argv = list;
    memcpy(list, word + 9, arguments * sizeof *list);
    order->env = list + arguments + 1;
    memcpy(order->env, word + 10 + arguments, variables * sizeof *list);
    return true;
}

/* `ours`: a file in the queue's own folder, given to the user; any other stays as it is. */
static bool open_output(const struct order *order, const char *path, int to, bool ours)
{
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY;
    int fd = open(path, ours ? flags | O_NOFOLLOW : flags, 0644);
    if (fd < 0)
        return false;
    if (ours && order->uid >= 0 && fchown(fd, (uid_t)order->uid, (gid_t)order->gid) != 0)
        return false;
    if (ours && fchmod(fd, 0600) != 0)
        return false;
    bool good = fd == to || (dup2(fd, to) == to && close(fd) == 0);
    return good;
}

static bool become_user(const struct order *order)
{
    if (order->uid < 0)
        return true;
    struct passwd *user = getpwuid((uid_t)order->uid);
    bool grouped =
        user != NULL ? initgroups(user->pw_name, (gid_t)order->gid) == 0 : setgroups(0, NULL) == 0;
    return grouped && setgid((gid_t)order->gid) == 0 && setuid((uid_t)order->uid) == 0;
}

/* In the job's process: says to `told` why the program does not run. */
static _Noreturn void fail(int reported, const char *what, const char *name)
{
    dprintf(reported, "%s: %.200s: %s", what, name, strerror(errno));
    _exit(127);
}

static _Noreturn void run_job(const struct order *order, int go, int reported)
{
    char byte, draft[32], text[96];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    if (setsid() < 0 || read(go, &byte, 1) != 1) /* the shim is gone: nothing has begun */
        _exit(126);
    snprintf(draft, sizeof draft, ".began.%d", (int)getpid());
    snprintf(text, sizeof text, "%d %llu %lld\n", (int)getpid(), start_of(getpid()), boot_ms());
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0)
        fail(reported, "the run folder cannot be written", draft);
    if (order->cgroup[0] != 0) {
        int group = open(order->cgroup, O_WRONLY | O_CLOEXEC);
        if (group < 0 || write(group, "0", 1) != 1)
            fail(reported, "the job cannot enter its cgroup", order->cgroup);
        close(group);
    }
    int nothing = open("/dev/null", O_RDWR);
    if (nothing < 0 || dup2(nothing, 0) != 0 || dup2(nothing, 1) != 1 || dup2(nothing, 2) != 2)
        fail(reported, "/dev/null cannot be opened", "/dev/null");
    if (order->out_is_ours && !open_output(order, order->out, 1, true))
        fail(reported, "the output file cannot be opened", order->out);
    if (link(draft, "began") != 0)
        _exit(125); /* given up by a broker */
    unlink(draft);
    if (!become_user(order))
        fail(reported, "the job cannot become its user", order->argv[0]);
    if (chdir(order->folder) != 0)
        fail(reported, "no such folder to run in", order->folder);
    if (!order->out_is_ours && !open_output(order, order->out, 1, false))
        fail(reported, "the output file cannot be opened", order->out);
    if (order->err[0] == 0 ? dup2(1, 2) != 2 : !open_output(order, order->err, 2, false))
        fail(reported, "the error file cannot be opened", order->err);
    environ = order->env; /* the command is looked up on its user's PATH */
    execvp(order->argv[0], order->argv);
    fail(reported, "the command cannot be run", order->argv[0]);
}

/* When the job is to be ended, and how long it has then; false: it has no time limit. */
static bool read_limit(long long *due_ms, long long *grace_ms)
{
    char text[96];
    long long after_ms, began_ms = boot_ms(); /* it is about to */
    if (!read_text("limit", text, sizeof text) ||
        sscanf(text, "%lld %lld", &after_ms, grace_ms) != 2)
        return false;
    if (read_text("began", text, sizeof text))
        sscanf(text, "%*d %*u %lld", &began_ms);
    *due_ms = began_ms + after_ms;
    return true;
}

/* SIGTERM to the job, unless a broker has sent it. */
static void expire(pid_t job)
{
    int mark = open("expired", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (mark >= 0 || errno != EEXIST)
        kill(-job, SIGTERM);
    kill(-job, SIGCONT);
    if (mark >= 0)
        close(mark);
}

/* Waits for the job, and ends it at its limit. Orphans end here, too. `child` is SIGCHLD, blocked.
   False: there is no such job. */
static bool wait_for(pid_t job, const sigset_t *child, int *status, struct rusage *used)
{
    long long kill_ms = 0; /* 0: it was not told to end */
    for (;;) {
        pid_t gone;
        while ((gone = wait4(-1, status, WNOHANG, used)) > 0)
            if (gone == job)
                return true;
        if (gone < 0 && errno != EINTR)
            return false;
        long long now_ms = boot_ms(), left_ms = LONGEST_WAIT_MS, due_ms, grace_ms;
        if (kill_ms == 0 && read_limit(&due_ms, &grace_ms)) {
            if (due_ms <= now_ms) {
                expire(job);
                kill_ms = due_ms = now_ms + grace_ms;
            }
            left_ms = due_ms - now_ms;
        } else if (kill_ms > now_ms) {
            left_ms = kill_ms - now_ms;
        } else if (kill_ms != 0) {
            kill(-job, SIGKILL);
        }
        if (left_ms > LONGEST_WAIT_MS)
            left_ms = LONGEST_WAIT_MS;
        struct timespec left = { .tv_sec = left_ms / 1000, .tv_nsec = left_ms % 1000 * 1000000 };
        sigtimedwait(child, NULL, &left);
    }
}

/* Ends what the job left running, wherever it has gone: orphans come to this process. */
static void end_daemons(void)
{
    long long until = boot_ms() + DAEMONS_MS;
    while (boot_ms() < until) {
        pid_t gone;
        while ((gone = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (gone < 0 && errno == ECHILD)
            return;
        DIR *list = opendir("/proc");
        for (struct dirent *item; list != NULL && (item = readdir(list)) != NULL;) {
            pid_t pid = (pid_t)atoi(item->d_name);
            if (pid > 1 && parent_of(pid) == getpid())
                kill(pid, SIGKILL);
        }
        if (list != NULL)
            closedir(list);
        usleep(2000);
    }
}

int main(int count, char **words)
{
    struct order order;
    int go[2], reported[2], status = 0, lock;
    char text[600], why[400];
    if (count != 2 || chdir(words[1]) != 0)
        return 2;
    lock = open("lock", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0 || access("began", F_OK) == 0)
        return 3;
    signal(SIGHUP, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    snprintf(text, sizeof text, "%d %llu\n", (int)getpid(), start_of(getpid()));
    if (!write_whole("shim", text, false) || !read_order(&order) || pipe2(go, O_CLOEXEC) != 0 ||
        pipe2(reported, O_CLOEXEC) != 0)
        return 4;
    pid_t job = fork();
    if (job == 0) {
        close(lock);
        close(go[1]);
        close(reported[0]);
        run_job(&order, go[0], reported[1]);
    }
    close(go[0]);
    close(reported[1]);
    if (job < 0 || write(go[1], "g", 1) != 1)
        return 5;
    struct rusage used;
    if (!wait_for(job, &child, &status, &used))
        return 6;
    long long end_ms = boot_ms();
    if (access("began", F_OK) != 0 && WIFEXITED(status) && WEXITSTATUS(status) == 125)
        return 7;
    /* What the program itself writes there is not read: the pipe is closed when it runs. */
    ssize_t size = read(reported[0], why, sizeof why - 1);
    why[size > 0 ? size : 0] = 0;
    for (char *at = why; *at != 0; at++)
        *at = *at == '\n' ? ' ' : *at;
    long long cpu_ms = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000ll +
                       (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
    snprintf(text, sizeof text, "%d %d %lld %lld %ld %s\n",
             WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
             WIFSIGNALED(status) ? WTERMSIG(status) : 0, end_ms, cpu_ms, used.ru_maxrss, why);
    while (!write_whole("exit", text, true)) /* a full disk: the exit is not to be lost */
        usleep(500000);
    end_daemons();
    return 0;
}
