/* A load generator: one process, one epoll loop, keep-alive connections.
 *
 *     load PORT CONNECTIONS SECONDS MAX_REQUESTS BODIES FIRST_ID RAMP_US
 *
 * Each connection sends a request, reads the whole answer and sends the next one
 * (a closed loop), until SECONDS are over or MAX_REQUESTS (0: no limit) are sent;
 * then what is under way is read to its end. RAMP_US spaces the first requests.
 * BODIES is a file of records "<length>\n<body>", used in turn; ten `@` in a body
 * are replaced by the request's number, from FIRST_ID up.
 *
 * Prints one JSON object: counts, and times in microseconds. `chunk_*` is the way
 * of a chunk from engine to client (the engine writes its clock into the chunk). */
#define _GNU_SOURCE
#include "link.h"

#include <signal.h>
#include <stddef.h>

enum { ID_DIGITS = 10, MAX_ERRORS = 1000, GRACE_S = 20 };

struct body {
    char *data;
    size_t size;
    ptrdiff_t id_at; /* -1 when the body is not numbered */
};

struct samples {
    int64_t *ns;
    size_t used, size;
};

struct client {
    struct link link;
    struct message answer;
    bool is_busy, is_stream, is_done; /* done: the stream said [DONE] */
    int64_t sent_at, first_at;
};

static int loop, port;
static struct body *bodies;
static int num_bodies;
static long num_issued, max_requests, first_id;
static long num_ok, num_errors, num_refused, num_busy;
static int64_t deadline;
static struct samples latency, first_chunk, chunk_delay;
static struct buffer outgoing;

static void sample(struct samples *s, int64_t ns)
{
    if (s->used == s->size) {
        s->size = s->size ? 2 * s->size : 65536;
        s->ns = must_have(realloc(s->ns, s->size * sizeof *s->ns));
    }
    s->ns[s->used++] = ns;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, struct samples *s)
{
    if (!s->used)
        return;
    qsort(s->ns, s->used, sizeof *s->ns, compare);
    printf(",\"%s_p50_us\":%.1f,\"%s_p99_us\":%.1f", name,
           s->ns[s->used / 2] / 1e3, name, s->ns[s->used * 99 / 100] / 1e3);
}

static void read_bodies(const char *path)
{
    char line[32];
    FILE *file = fopen(path, "rb");
    while (file && fgets(line, sizeof line, file)) {
        struct body b = {.size = atol(line)};
        b.data = must_have(malloc(b.size));
        if (fread(b.data, 1, b.size, file) != b.size)
            break;
        char *mark = memmem(b.data, b.size, "@@@@@@@@@@", ID_DIGITS);
        b.id_at = mark ? mark - b.data : -1;
        bodies = must_have(realloc(bodies, (num_bodies + 1) * sizeof b));
        bodies[num_bodies++] = b;
    }
    if (!num_bodies) {
        fprintf(stderr, "%s: no bodies\n", path);
        exit(2);
    }
}

static void dial(struct client *c)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = loopback(port);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        perror("connect");
        exit(1);
    }
    message_reset(&c->answer);
    link_open(&c->link, loop, fd, c);
}

static bool may_issue(void)
{
    return (!max_requests || num_issued < max_requests) && now_ns() < deadline;
}

static void write_request(struct body *b)
{
    char head[512], id[24];
    int n = snprintf(head, sizeof head,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                     "Content-Type: application/json\r\nAuthorization: Bearer sk-test\r\n"
                     "Accept: */*\r\nUser-Agent: load/1\r\nContent-Length: %zu\r\n\r\n",
                     port, b->size);
    outgoing.used = 0;
    buffer_append(&outgoing, head, n);
    buffer_append(&outgoing, b->data, b->size);
    if (b->id_at < 0)
        return;
    snprintf(id, sizeof id, "%010ld", (first_id + num_issued) % 10000000000);
    memcpy(outgoing.data + n + b->id_at, id, ID_DIGITS);
}

static void issue(struct client *c)
{
    if (!may_issue())
        return;
    write_request(&bodies[num_issued % num_bodies]);
    num_issued++;
    num_busy++;
    c->is_busy = true;
    c->is_stream = c->is_done = false;
    c->first_at = 0;
    c->sent_at = now_ns();
    link_send(&c->link, outgoing.data, outgoing.used);
}

static void read_event(struct client *c, const char *event, size_t n, int64_t now)
{
    c->is_stream = true;
    c->is_done |= n >= 12 && !memcmp(event, "data: [DONE]", 12);
    const char *content = memmem(event, n, "\"content\":\"", 11);
    if (!content || content[11] == '"')
        return;
    if (!c->first_at) {
        c->first_at = now;
        sample(&first_chunk, now - c->sent_at);
    }
    sample(&chunk_delay, now - atoll(content + 11));
}

/* Take the whole server-sent events out of the body received so far. */
static void read_events(struct client *c, int64_t now)
{
    struct buffer *body = &c->answer.body;
    size_t at = 0;
    char *end;
    if (body->used < 5 || memcmp(body->data, "data:", 5))
        return;
    while ((end = memmem(body->data + at, body->used - at, "\n\n", 2))) {
        read_event(c, body->data + at, end - (body->data + at), now);
        at = end + 2 - body->data;
    }
    buffer_drop(body, at);
}

static void settle(struct client *c, int64_t now)
{
    bool ok = strstr(c->answer.start, " 200") && (!c->is_stream || c->is_done);
    num_ok += ok;
    num_refused += !ok;
    num_busy--;
    c->is_busy = false;
    sample(&latency, now - c->sent_at);
}

static void reconnect(struct client *c)
{
    if (c->is_busy) {
        num_errors++;
        num_busy--;
        c->is_busy = false;
    }
    if (num_errors > MAX_ERRORS) {
        fprintf(stderr, "more than %d connections broke\n", MAX_ERRORS);
        exit(1);
    }
    link_close(&c->link);
    dial(c);
    issue(c);
}

static void receive(struct client *c)
{
    if (!link_receive(&c->link)) {
        reconnect(c);
        return;
    }
    int64_t now = now_ns();
    bool complete = message_feed(&c->answer, &c->link.in);
    read_events(c, now);
    if (c->answer.broken) {
        reconnect(c);
    } else if (complete) {
        settle(c, now);
        bool close = c->answer.close;
        message_reset(&c->answer);
        if (close)
            reconnect(c);
        else
            issue(c);
    }
}

static void handle(struct client *c, uint32_t events)
{
    if (events & EPOLLOUT && !link_send_rest(&c->link))
        reconnect(c);
    else if (events & ~EPOLLOUT)
        receive(c);
}

/* Run all clients; returns when nothing is under way and nothing may start. */
static void run(struct client *clients, int num_clients, int64_t ramp_ns)
{
    struct epoll_event events[MAX_EVENTS];
    int64_t start = now_ns();
    int started = 0;
    while (num_busy || may_issue()) {
        int64_t now = now_ns();
        if (now > deadline + GRACE_S * (int64_t)1000000000)
            return;
        while (started < num_clients && start + started * ramp_ns <= now)
            issue(&clients[started++]);
        int n = epoll_wait(loop, events, MAX_EVENTS, started < num_clients ? 1 : 100);
        for (int i = 0; i < n; i++)
            handle(events[i].data.ptr, events[i].events);
    }
}

static void print_result(int64_t start)
{
    printf("{\"issued\":%ld,\"ok\":%ld,\"errors\":%ld,\"refused\":%ld,\"unanswered\":%ld,"
           "\"chunks\":%zu,\"seconds\":%.3f",
           num_issued, num_ok, num_errors, num_refused, num_busy, chunk_delay.used,
           (now_ns() - start) / 1e9);
    print_samples("latency", &latency);
    print_samples("first_chunk", &first_chunk);
    print_samples("chunk", &chunk_delay);
    puts("}");
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fputs("usage: load PORT CONNECTIONS SECONDS MAX_REQUESTS BODIES FIRST_ID RAMP_US\n",
              stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    port = atoi(argv[1]);
    int num_clients = atoi(argv[2]);
    max_requests = atol(argv[4]);
    first_id = atol(argv[6]);
    read_bodies(argv[5]);
    loop = epoll_create1(0);
    struct client *clients = must_have(calloc(num_clients, sizeof *clients));
    for (int i = 0; i < num_clients; i++)
        dial(&clients[i]);
    int64_t start = now_ns();
    deadline = start + (int64_t)(atof(argv[3]) * 1e9);
    run(clients, num_clients, atol(argv[7]) * 1000);
    print_result(start);
    return 0;
}
