/* Preloaded into data nodes, operator and clients: an address, a clock and a disk of their own.
 *
 * REZONE_CHAOS_ADDRESS is the address that connections come from, so that a packet filter can tell
 * the processes of one machine apart. REZONE_CHAOS_FILE is mapped: what stands there is done to
 * this process, and how often is counted there, so that a fault which does nothing is found out.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(&name##_real, #name))
#define COUNT(field) __atomic_fetch_add(&control->field, 1, __ATOMIC_RELAXED)

/* The same order as FIELDS in shim.py. */
struct control {
    int64_t clock_offset_ns, sync_delay_ms, sync_errno;
    int64_t clocks_moved, syncs_delayed, syncs_failed, connections;
};

static const int64_t SECOND_NS = 1000000000;
static struct control nothing, *control = &nothing;
static struct sockaddr_in source;
static void *clock_gettime_real, *fsync_real, *fdatasync_real, *connect_real;

static void *real(void **cache, const char *name) {
    if (*cache == NULL) *cache = dlsym(RTLD_NEXT, name);
    return *cache;
}

__attribute__((constructor)) static void begin(void) {
    const char *address = getenv("REZONE_CHAOS_ADDRESS"), *file = getenv("REZONE_CHAOS_FILE");
    source.sin_family = AF_INET;
    if (address == NULL || inet_pton(AF_INET, address, &source.sin_addr) != 1)
        source.sin_addr.s_addr = INADDR_ANY;
    int descriptor = file == NULL ? -1 : open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return;
    if (ftruncate(descriptor, sizeof nothing) == 0) {
        void *mapped = mmap(NULL, sizeof nothing, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (mapped != MAP_FAILED) control = mapped;
    }
    close(descriptor);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = REAL(clock_gettime)(clock, at);
    int64_t offset = control->clock_offset_ns;
    if (failed || offset == 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t moved = at->tv_sec * SECOND_NS + at->tv_nsec + offset;
    at->tv_sec = moved / SECOND_NS;
    at->tv_nsec = moved % SECOND_NS;
    COUNT(clocks_moved);
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}

/* Whether a sync is to fail; it comes back as late as it shall in any case. */
static int trouble(void) {
    int64_t delay = control->sync_delay_ms, error = control->sync_errno;
    if (delay > 0) {
        struct timespec left = {delay / 1000, delay % 1000 * 1000000};
        while (nanosleep(&left, &left) != 0 && errno == EINTR) {
        }
        COUNT(syncs_delayed);
    }
    if (error == 0) return 0;
    COUNT(syncs_failed);
    errno = (int)error;
    return 1;
}

int fsync(int descriptor) { return trouble() ? -1 : REAL(fsync)(descriptor); }

int fdatasync(int descriptor) { return trouble() ? -1 : REAL(fdatasync)(descriptor); }

static int bind_source(int descriptor, const struct sockaddr *target) {
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6};
    if (target->sa_family == AF_INET)
        return bind(descriptor, (struct sockaddr *)&source, sizeof source);
    /* gRPC's sockets speak both versions: to them ours are ::ffff:a.b.c.d. */
    mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&mapped.sin6_addr.s6_addr[12], &source.sin_addr, sizeof source.sin_addr);
    return bind(descriptor, (struct sockaddr *)&mapped, sizeof mapped);
}

static int ours(const struct sockaddr *target) {
    return target->sa_family == AF_INET ||
           (target->sa_family == AF_INET6 &&
            IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)target)->sin6_addr));
}

static int unbound_stream(int descriptor) {
    struct sockaddr_in6 bound;
    int type = 0;
    socklen_t size = sizeof bound, type_size = sizeof type;
    return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &type_size) == 0 &&
           type == SOCK_STREAM && getsockname(descriptor, (struct sockaddr *)&bound, &size) == 0 &&
           bound.sin6_port == 0; /* at the same place in both versions */
}

int connect(int descriptor, const struct sockaddr *target, socklen_t length) {
    int on = 1;
    if (source.sin_addr.s_addr != INADDR_ANY && ours(target) && unbound_stream(descriptor)) {
        /* The port is chosen when the target is known, as without bind. */
        setsockopt(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind_source(descriptor, target) == 0) COUNT(connections);
    }
    return REAL(connect)(descriptor, target, length);
}
