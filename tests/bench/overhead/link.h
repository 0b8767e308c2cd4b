/* A non-blocking TCP connection in an epoll loop, with what waits to be sent. */
#ifndef LINK_H
#define LINK_H

#include "http1.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_EVENTS = 512, READ_SIZE = 262144 };

struct link {
    int fd, loop;
    void *owner; /* what epoll hands back */
    bool wants_write;
    struct buffer in, out;
};

static inline struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline void link_open(struct link *l, int loop, int fd, void *owner)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    l->fd = fd;
    l->loop = loop;
    l->owner = owner;
    l->wants_write = false;
    l->in.used = l->out.used = 0;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = owner};
    epoll_ctl(loop, EPOLL_CTL_ADD, fd, &e);
}

static inline void link_close(struct link *l)
{
    close(l->fd);
    free(l->in.data);
    free(l->out.data);
    l->in = l->out = (struct buffer){0};
}

static inline void link_watch(struct link *l, bool write)
{
    if (l->wants_write == write)
        return;
    l->wants_write = write;
    struct epoll_event e = {.events = EPOLLIN | (write ? EPOLLOUT : 0),
                            .data.ptr = l->owner};
    epoll_ctl(l->loop, EPOLL_CTL_MOD, l->fd, &e);
}

/* Send now what the socket takes and keep the rest; false when the peer left. */
static inline bool link_send(struct link *l, const char *data, size_t n)
{
    if (!l->out.used) {
        ssize_t sent = send(l->fd, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return false;
        if (sent > 0) {
            data += sent;
            n -= sent;
        }
    }
    if (n) {
        buffer_append(&l->out, data, n);
        link_watch(l, true);
    }
    return true;
}

static inline bool link_send_rest(struct link *l)
{
    ssize_t sent = send(l->fd, l->out.data, l->out.used, MSG_NOSIGNAL);
    if (sent < 0)
        return errno == EAGAIN;
    buffer_drop(&l->out, sent);
    if (!l->out.used)
        link_watch(l, false);
    return true;
}

/* Read once into `in`; false when the peer left. */
static inline bool link_receive(struct link *l)
{
    buffer_reserve(&l->in, READ_SIZE);
    ssize_t n = recv(l->fd, l->in.data + l->in.used, READ_SIZE, 0);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    l->in.used += n;
    return true;
}

#endif
