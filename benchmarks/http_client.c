// A client of streams that costs little: for scripts/bench http.
//
//   http_client HOST PORT N_STREAMS N_ROUNDS REQUEST_FILE MARK
//
// Each of N_STREAMS connections sends the request of the file N_ROUNDS times, one after the other,
// and reads the reply: chunks of server-sent events. The last event of each must contain MARK.
// Prints one JSON object: seconds from the first request to the last byte, its own CPU seconds,
// events, bytes, replies, and percentiles of the times between the events of a stream and up to the
// first one, in milliseconds. Events that one read returns arrive at the same time. Ends with
// status 1 if a reply is wrong.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    double *values;
    size_t n, size;
} Times;

typedef struct {
    char *data;
    size_t n, size;
} Text;

enum Part { HEAD, SIZE, DATA, DATA_END, LAST_END };

typedef struct {
    int fd;
    enum Part part;
    long n_left;       // bytes of this chunk
    int rounds_left;
    double t_sent, t_last;  // of the last event; 0: none yet
    int ends_rightly;  // the last event has the mark
    Text line, event;
} Stream;

static Text request;
static const char *mark;
static Times gaps, firsts;
static long n_events, n_bytes, n_replies;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void fail(const char *what, const Text *found) {
    fprintf(stderr, "http_client: %s\n", what);
    if (found) fprintf(stderr, "%.*s\n", (int)found->n, found->data);
    exit(1);
}

static void *grown(void *data, size_t n, size_t *size, size_t unit) {
    if (n <= *size) return data;
    *size = n > 2 * *size ? n : 2 * *size;
    data = realloc(data, *size * unit);
    if (!data) fail("no memory", NULL);
    return data;
}

static void append(Text *text, const char *data, size_t n) {
    text->data = grown(text->data, text->n + n, &text->size, 1);
    memcpy(text->data + text->n, data, n);
    text->n += n;
}

static void add(Times *times, double value) {
    times->values = grown(times->values, times->n + 1, &times->size, sizeof(double));
    times->values[times->n++] = value;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const Times *times, double p) {
    return times->n ? 1e3 * times->values[(size_t)(p * (times->n - 1) + 0.5)] : 0;
}

static void begin(Stream *s) {
    s->part = HEAD;
    s->line.n = s->event.n = 0;
    s->t_last = 0;
    s->ends_rightly = 0;
    s->t_sent = now();
    if (send(s->fd, request.data, request.n, MSG_NOSIGNAL) != (ssize_t)request.n)
        fail("the request could not be sent", NULL);
}

static void end_event(Stream *s, double t) {
    const Text *event = &s->event;
    if (memmem(event->data, event->n, "data: ", 6)) {  // not a ping
        n_events++;
        add(s->t_last ? &gaps : &firsts, t - (s->t_last ? s->t_last : s->t_sent));
        s->t_last = t;
        s->ends_rightly = memmem(event->data, event->n, mark, strlen(mark)) != NULL;
        if (memmem(event->data, event->n, "\"error\":{", 9)) fail("an error in a stream", event);
    }
    s->event.n = 0;
}

static void body(Stream *s, const char *data, size_t n, double t) {
    while (n) {
        const char *at = memchr(data, '\n', n);
        size_t k = at ? (size_t)(at - data) + 1 : n;
        int is_end = at && k == 1 && s->event.n && s->event.data[s->event.n - 1] == '\n';
        append(&s->event, data, k);
        if (is_end) end_event(s, t);
        data += k;
        n -= k;
    }
}

static int take_line(Stream *s, const char **data, size_t *n) {
    // append up to the next line break; 1 if it is there
    const char *at = memchr(*data, '\n', *n);
    size_t k = at ? (size_t)(at - *data) + 1 : *n;
    append(&s->line, *data, k);
    *data += k;
    *n -= k;
    return at != NULL;
}

static int feed(Stream *s, const char *data, size_t n, double t) {
    // 1 at the end of the last reply
    while (n) {
        if (s->part == DATA) {
            size_t k = n < (size_t)s->n_left ? n : (size_t)s->n_left;
            body(s, data, k, t);
            data += k;
            n -= k;
            s->n_left -= k;
            if (!s->n_left) s->part = DATA_END;
            continue;
        }
        if (!take_line(s, &data, &n)) break;
        if (s->part == HEAD) {
            if (s->line.n < 4 || memcmp(s->line.data + s->line.n - 4, "\r\n\r\n", 4)) continue;
            append(&s->line, "", 1);
            if (strncmp(s->line.data, "HTTP/1.1 200", 12) || !strcasestr(s->line.data, "chunked"))
                fail("the reply is not a stream:", &s->line);
            s->part = SIZE;
        } else if (s->part == SIZE) {
            s->n_left = strtol(s->line.data, NULL, 16);
            s->part = s->n_left ? DATA : LAST_END;
        } else if (s->part == DATA_END) {
            s->part = SIZE;
        } else {
            if (!s->ends_rightly) fail("a stream did not end with the mark", NULL);
            n_replies++;
            if (!--s->rounds_left) return 1;
            begin(s);
        }
        s->line.n = 0;
    }
    return 0;
}

static int connected(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1 ||
        connect(fd, (struct sockaddr *)&address, sizeof address))
        fail("cannot connect", NULL);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void read_request(const char *path) {
    char buffer[65536];
    size_t n;
    FILE *file = fopen(path, "rb");
    if (!file) fail("cannot read the request", NULL);
    while ((n = fread(buffer, 1, sizeof buffer, file))) append(&request, buffer, n);
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc != 7) fail("usage: http_client HOST PORT N_STREAMS N_ROUNDS REQUEST_FILE MARK", NULL);
    int n_open = atoi(argv[3]), poll = epoll_create1(0);
    mark = argv[6];
    read_request(argv[5]);
    Stream *streams = calloc(n_open, sizeof(Stream));
    for (int i = 0; i < n_open; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &streams[i]};
        streams[i].fd = connected(argv[1], atoi(argv[2]));
        streams[i].rounds_left = atoi(argv[4]);
        epoll_ctl(poll, EPOLL_CTL_ADD, streams[i].fd, &event);
    }
    double t_begin = now();
    for (int i = 0; i < n_open; i++) begin(&streams[i]);
    static char buffer[1 << 18];
    while (n_open) {
        struct epoll_event found[64];
        int n = epoll_wait(poll, found, 64, -1);
        for (int i = 0; i < n; i++) {
            Stream *s = found[i].data.ptr;
            ssize_t k = read(s->fd, buffer, sizeof buffer);
            if (k <= 0) fail("the server closed the connection", &s->event);
            n_bytes += k;
            if (feed(s, buffer, k, now())) {
                close(s->fd);
                n_open--;
            }
        }
    }
    double seconds = now() - t_begin;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec +
                 1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    qsort(gaps.values, gaps.n, sizeof(double), compare);
    qsort(firsts.values, firsts.n, sizeof(double), compare);
    printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"events\": %ld, \"bytes\": %ld, \"replies\": %ld, "
           "\"gap_ms\": [%.3f, %.3f], \"first_ms\": [%.3f, %.3f]}\n",
           seconds, cpu, n_events, n_bytes, n_replies, percentile(&gaps, 0.5),
           percentile(&gaps, 0.99), percentile(&firsts, 0.5), percentile(&firsts, 0.99));
    return 0;
}
