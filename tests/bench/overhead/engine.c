/* A mock inference engine: one process, one epoll loop, many ports.
 *
 *     engine NUM_PORTS
 *
 * Listens on NUM_PORTS free loopback ports, prints them as a JSON list, and
 * answers like vLLM would: health, version, models, metrics, and completions of
 * any kind. Text inside the prompt controls an answer:
 *
 *     #chunks=N#   a stream has N content chunks (default 50)
 *     #every=MS#   milliseconds between chunks (default 0: as fast as it goes)
 *     #group=G#    prompts of a group share three quarters of their text; the
 *                  answer reports those as cached tokens from the second on
 *     #id=D#       ten digits that number the request, looked for at the end
 *
 * GET /stats tells what arrived, so that a runner can find requests that were
 * lost or sent twice. The process ends when its standard input does. */
#define _GNU_SOURCE
#include "canned.h"
#include "connection.h"
#include "id_set.h"

#include <signal.h>

enum { MAX_PORTS = 64, MAX_GROUPS = 4096, OUT_LIMIT = 65536, TAIL = 512 };

static unsigned long num_posts, num_distinct, num_chunks;
static bool group_seen[MAX_PORTS][MAX_GROUPS];
static struct id_set ids;

static bool reply(struct connection *c, const char *type, const char *body)
{
    char out[4096];
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 200 OK\r\ncontent-type: %s\r\nserver: mock\r\n"
                     "content-length: %zu\r\n\r\n%s",
                     type, strlen(body), body);
    return link_send(&c->link, out, n);
}

static bool reply_stats(struct connection *c)
{
    char out[256];
    snprintf(out, sizeof out, "{\"posts\":%lu,\"distinct\":%lu,\"chunks\":%lu}",
             num_posts, num_distinct, num_chunks);
    return reply(c, "application/json", out);
}

static void write_usage(struct connection *c, char *out, size_t size)
{
    snprintf(out, size,
             "\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,"
             "\"completion_tokens\":50,"
             "\"prompt_tokens_details\":{\"cached_tokens\":%d}}",
             c->prompt_tokens, c->prompt_tokens + 50, c->cached_tokens);
}

static bool reply_completion(struct connection *c)
{
    char usage[256], out[1536];
    write_usage(c, usage, sizeof usage);
    snprintf(out, sizeof out,
             "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\","
             "\"created\":1700000000,\"model\":\"mock\",\"choices\":[%s],%s}",
             CHOICE, usage);
    return reply(c, "application/json", out);
}

static bool send_event(struct connection *c, const char *choices, const char *usage)
{
    char event[1024], frame[1100];
    int n = snprintf(event, sizeof event,
                     "data: {\"id\":\"chatcmpl-0123456789abcdef\","
                     "\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                     "\"model\":\"mock\",\"choices\":[%s]%s}\n\n",
                     choices, usage);
    int size = snprintf(frame, sizeof frame, "%x\r\n%s\r\n", n, event);
    return link_send(&c->link, frame, size);
}

static bool finish_stream(struct connection *c)
{
    char usage[256] = ",";
    stream_remove(c);
    if (c->wants_usage) {
        write_usage(c, usage + 1, sizeof usage - 1);
        if (!send_event(c, "", usage))
            return false;
    }
    return link_send(&c->link, STREAM_END, sizeof STREAM_END - 1);
}

/* The content is the time of sending, so that the reader can measure the delay. */
static bool send_chunk(struct connection *c)
{
    char choices[256];
    snprintf(choices, sizeof choices,
             "{\"index\":0,\"delta\":{\"content\":\"%019lld\"},\"logprobs\":null,"
             "\"finish_reason\":null}",
             (long long)now_ns());
    num_chunks++;
    c->chunks_left--;
    if (!send_event(c, choices, ""))
        return false;
    return c->chunks_left > 0 || finish_stream(c);
}

static long number_after(struct buffer *body, const char *key, long fallback)
{
    char *found = memmem(body->data, body->used, key, strlen(key));
    return found ? atol(found + strlen(key)) : fallback;
}

static bool start_stream(struct connection *c)
{
    struct buffer *body = &c->request.body;
    c->chunks_left = number_after(body, "#chunks=", 50);
    c->interval = number_after(body, "#every=", 0) * 1000000;
    c->due = now_ns() + c->interval;
    c->wants_usage = memmem(body->data, body->used, "\"include_usage\":true", 20);
    stream_add(c);
    return link_send(&c->link, STREAM_HEAD, sizeof STREAM_HEAD - 1)
        && send_event(c, FIRST_CHOICE, "");
}

/* Count a numbered request; a proxy's own probes carry no number. */
static void note_request(struct connection *c)
{
    struct buffer *body = &c->request.body;
    size_t tail = body->used < TAIL ? body->used : TAIL;
    char *found = memmem(body->data + body->used - tail, tail, "#id=", 4);
    if (!found)
        return;
    num_posts++;
    num_distinct += id_set_add(&ids, strtoul(found + 4, NULL, 10));
}

static void note_cached(struct connection *c)
{
    long group = number_after(&c->request.body, "#group=", 0) % MAX_GROUPS;
    bool *seen = &group_seen[c->port_index][group];
    c->prompt_tokens = c->request.body.used / 4;
    c->cached_tokens = *seen ? c->prompt_tokens * 3 / 4 / 16 * 16 : 0;
    *seen = true;
}

static bool answer_get(struct connection *c, const char *path)
{
    if (!strncmp(path, "/v1/models", 10))
        return reply(c, "application/json", MODELS);
    if (!strncmp(path, "/metrics", 8))
        return reply(c, "text/plain; version=0.0.4", METRICS);
    if (!strncmp(path, "/stats", 6))
        return reply_stats(c);
    if (!strncmp(path, "/version", 8))
        return reply(c, "application/json", "{\"version\":\"0.32.0\"}");
    if (strstr(path, "_info"))
        return reply(c, "application/json", SERVER_INFO);
    return reply(c, "application/json", "{\"status\":\"ok\"}");
}

static bool answer_post(struct connection *c)
{
    struct buffer *body = &c->request.body;
    note_request(c);
    note_cached(c);
    if (memmem(body->data, body->used, "\"stream\":true", 13))
        return start_stream(c);
    return reply_completion(c);
}

static bool answer(struct connection *c)
{
    const char *space = strchr(c->request.start, ' ');
    if (!space)
        return false;
    if (!strncmp(c->request.start, "POST ", 5))
        return answer_post(c);
    return answer_get(c, space + 1);
}

/* Answer the requests that have arrived whole; false when the peer must go. */
static bool serve(struct connection *c)
{
    while (c->stream_slot < 0 && message_feed(&c->request, &c->link.in)) {
        if (!answer(c) || (c->request.close && c->stream_slot < 0))
            return false;
        message_reset(&c->request);
    }
    return !c->request.broken;
}

static void accept_all(struct connection *listener)
{
    int fd;
    while ((fd = accept(listener->link.fd, NULL, NULL)) >= 0)
        adopt(fd, listener->port_index, false);
}

static void handle(struct connection *c, uint32_t events)
{
    if (c->is_listener)
        accept_all(c);
    else if (events & EPOLLOUT && !link_send_rest(&c->link))
        drop(c);
    else if (events & ~EPOLLOUT && !(link_receive(&c->link) && serve(c)))
        drop(c);
}

/* Send the chunks that are due, at most one a stream and turn. */
static void advance_streams(void)
{
    int64_t now = now_ns();
    for (int i = num_streams - 1; i >= 0; i--) {
        struct connection *c = streams[i];
        if (c->due > now || c->link.out.used > OUT_LIMIT)
            continue;
        c->due += c->interval;
        if (!send_chunk(c) || (c->stream_slot < 0 && !serve(c)))
            drop(c);
    }
}

static int wait_ms(void)
{
    int64_t first = INT64_MAX;
    for (int i = 0; i < num_streams; i++)
        if (streams[i]->due < first)
            first = streams[i]->due;
    if (first == INT64_MAX)
        return -1;
    int64_t left = first - now_ns();
    return left <= 0 ? 0 : left / 1000000 + 1;
}

static int listen_anywhere(int port_index)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = loopback(0);
    socklen_t size = sizeof a;
    if (bind(fd, (struct sockaddr *)&a, size) || listen(fd, 4096)) {
        perror("listen");
        exit(1);
    }
    getsockname(fd, (struct sockaddr *)&a, &size);
    adopt(fd, port_index, true);
    return ntohs(a.sin_port);
}

static void open_ports(int num_ports)
{
    for (int i = 0; i < num_ports; i++)
        printf("%s%d", i ? ", " : "[", listen_anywhere(i));
    puts("]");
    fflush(stdout);
}

static void run(void)
{
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        int n = epoll_wait(loop, events, MAX_EVENTS, wait_ms());
        for (int i = 0; i < n; i++) {
            if (!events[i].data.ptr)
                return; /* standard input ended */
            handle(events[i].data.ptr, events[i].events);
        }
        advance_streams();
    }
}

int main(int argc, char **argv)
{
    int num_ports = argc == 2 ? atoi(argv[1]) : 0;
    if (num_ports < 1 || num_ports > MAX_PORTS) {
        fprintf(stderr, "usage: engine NUM_PORTS (1 to %d)\n", MAX_PORTS);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    loop = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(loop, EPOLL_CTL_ADD, STDIN_FILENO, &e);
    open_ports(num_ports);
    run();
    return 0;
}
