/* A private server: this program again, as a child on a socket in a temporary folder, gone when we are. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/client_internal.h"
#include "api/server_internal.h"

enum { PATH_BYTES = 108, POLL_MS = 20, STOP_MS_MAX = 20000, ARGS_MAX = 32 };

struct private_server {
    pid_t pid; /* 0: none */
    char folder[PATH_BYTES - 16];
    char socket[PATH_BYTES], log[PATH_BYTES];
};

const char *private_server_socket(const private_server *p)
{
    return p->socket;
}

static void wait_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

static status make_folder(private_server *p, err *e)
{
    const char *base = config_environment("TMPDIR");
    int n = snprintf(p->folder, sizeof p->folder, "%s/epimem-XXXXXX", base != NULL ? base : "/tmp");
    if (n < 0 || (size_t)n >= sizeof p->folder) { /* a deep TMPDIR leaves no room for a socket's name */
        (void)snprintf(p->folder, sizeof p->folder, "/tmp/epimem-XXXXXX");
    }
    if (mkdtemp(p->folder) == NULL) {
        int why = errno;
        p->folder[0] = '\0';
        return FAIL_OS(e, ST_ERR_IO, why, "a temporary folder could not be made: %s", strerror(why));
    }
    (void)snprintf(p->socket, sizeof p->socket, "%s/socket", p->folder);
    (void)snprintf(p->log, sizeof p->log, "%s/log", p->folder);
    return ST_OK;
}

typedef struct arguments {
    const char *argv[ARGS_MAX];
    int n;
    char numbers[4][24];
    int n_numbers;
} arguments;

static void add_text(arguments *a, const char *name, const char *value)
{
    if (value != NULL) {
        a->argv[a->n++] = name;
        a->argv[a->n++] = value;
    }
}

static void add_number(arguments *a, const char *name, int64_t value)
{
    if (value != 0) {
        char *text = a->numbers[a->n_numbers++];
        (void)snprintf(text, sizeof a->numbers[0], "%lld", (long long)value);
        add_text(a, name, text);
    }
}

static void fill_arguments(arguments *a, const client_options *o, const private_server *p)
{
    *a = (arguments){.argv = {"epimem", "serve"}, .n = 2};
    add_text(a, "--socket", p->socket);
    add_text(a, "--model", o->model);
    add_text(a, "--encoder", o->encoder);
    add_text(a, "--data", o->data);
    add_text(a, "--codec", o->codec);
    add_text(a, "--calibration", o->calibration);
    add_text(a, "--chat-template", o->chat_template);
    add_text(a, "--device", o->device);
    add_number(a, "--threads", o->threads);
    add_number(a, "--context", o->context_tokens);
    add_number(a, "--recall-tokens", o->recall_tokens);
    a->argv[a->n] = NULL;
}

/* In the child. Its own process group: Ctrl-C in the terminal is for the client. Addresses of other servers that the
 * environment names are not for this one. */
static void become_server(const arguments *a, int log, pid_t parent)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
        _exit(EXIT_FAULT);
    }
    (void)unsetenv("EPIMEM_LISTEN");
    (void)unsetenv("EPIMEM_HOST");
    (void)unsetenv("NOTIFY_SOCKET");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 &&
            dup2(log, STDERR_FILENO) >= 0) {
        (void)execv("/proc/self/exe", (char *const *)(uintptr_t)a->argv);
    }
    _exit(EXIT_FAULT);
}

/* What the server said last, for the error. */
static status fault_of_child(const private_server *p, err *e)
{
    char text[2048] = "", *last = text;
    FILE *f = fopen(p->log, "r");
    if (f != NULL) {
        (void)fseek(f, -(long)sizeof text + 1, SEEK_END);
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = '\0';
        while (n > 0 && text[n - 1] == '\n') {
            text[--n] = '\0';
        }
        char *newline = strrchr(text, '\n');
        last = newline != NULL ? newline + 1 : text;
        (void)fclose(f);
    }
    return FAIL(e, ST_ERR_IO, "the server did not start: %.300s",
            strncmp(last, "epimem: ", 8) == 0 ? last + 8 : last);
}

static status wait_until_ready(private_server *p, err *e)
{
    for (;;) {
        int how;
        err nobody;
        if (waitpid(p->pid, &how, WNOHANG) == p->pid) {
            p->pid = 0;
            return fault_of_child(p, e);
        }
        if (listen_path_probe(p->socket, &nobody) == ST_ERR_EXISTS) {
            return ST_OK;
        }
        if (client_was_interrupted()) {
            return FAIL(e, ST_ERR_CANCELLED, "interrupted");
        }
        wait_ms(POLL_MS);
    }
}

status private_server_start(const client_options *o, private_server **out, err *e)
{
    arguments a;
    private_server *p = base_zalloc(1, sizeof *p);
    if (p == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    status st = make_folder(p, e);
    int log = st == ST_OK ? open(p->log, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (st == ST_OK && log < 0) {
        st = FAIL_OS(e, ST_ERR_IO, errno, "%s: %s", p->log, strerror(errno));
    }
    if (st == ST_OK) {
        fill_arguments(&a, o, p);
        pid_t parent = getpid();
        p->pid = fork();
        if (p->pid == 0) {
            become_server(&a, log, parent);
        }
        st = p->pid > 0 ? wait_until_ready(p, e) : FAIL_OS(e, ST_ERR_IO, errno, "fork: %s", strerror(errno));
    }
    if (log >= 0) {
        (void)close(log);
    }
    if (st != ST_OK) {
        private_server_stop(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

/* Lets it finish and flush; one that hangs is killed. */
void private_server_stop(private_server *p)
{
    if (p == NULL) {
        return;
    }
    if (p->pid > 0) {
        int how, waited = 0;
        (void)kill(p->pid, SIGTERM);
        while (waitpid(p->pid, &how, WNOHANG) == 0) {
            if (waited > STOP_MS_MAX) {
                (void)kill(p->pid, SIGKILL);
            }
            wait_ms(POLL_MS);
            waited += POLL_MS;
        }
    }
    if (p->folder[0] != '\0') {
        (void)unlink(p->socket);
        (void)unlink(p->log);
        (void)rmdir(p->folder);
    }
    base_free(p);
}
