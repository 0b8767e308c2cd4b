/* A connection of the mock engine, and the list of those that stream. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "link.h"

struct connection {
    struct link link;
    int port_index;
    bool is_listener;
    struct message request;
    int chunks_left;        /* of the answer being streamed */
    int stream_slot;        /* place in `streams`, -1 when not in it */
    int64_t interval, due;  /* ns */
    bool wants_usage;
    int prompt_tokens, cached_tokens;
};

static int loop;
static struct connection **streams;
static int num_streams, streams_size;

static void stream_add(struct connection *c)
{
    if (num_streams == streams_size) {
        streams_size = streams_size ? 2 * streams_size : 1024;
        streams = must_have(realloc(streams, streams_size * sizeof *streams));
    }
    c->stream_slot = num_streams;
    streams[num_streams++] = c;
}

static void stream_remove(struct connection *c)
{
    if (c->stream_slot < 0)
        return;
    struct connection *last = streams[--num_streams];
    streams[c->stream_slot] = last;
    last->stream_slot = c->stream_slot;
    c->stream_slot = -1;
}

static void adopt(int fd, int port_index, bool is_listener)
{
    struct connection *c = must_have(calloc(1, sizeof *c));
    c->port_index = port_index;
    c->is_listener = is_listener;
    c->stream_slot = -1;
    link_open(&c->link, loop, fd, c);
}

static void drop(struct connection *c)
{
    stream_remove(c);
    link_close(&c->link);
    free(c->request.body.data);
    free(c);
}

#endif
