/* Calls each function of the C library that softnic-files redirects, for the files of a device and for another file. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of libibverbs, without a declaration in a header. */
int ibv_read_sysfs_file(const char *folder, const char *file, char *text, size_t size);

#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) {                                          \
            fprintf(stderr, "%d: %s: %m\n", __LINE__, #condition);   \
            exit(1);                                                 \
        }                                                            \
    } while (0)

static char guid_path[PATH_MAX];
static volatile int opened_by_handler;

static int count(struct dirent **entries, int number) {
    int found = 0;
    while (number--) {
        found += strcmp(entries[number]->d_name, "softnic0") == 0;
        free(entries[number]);
    }
    free(entries);
    return found;
}

static void read_guid(int fd, __be64 guid) {
    unsigned parts[4];
    char text[64] = "";
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) == 20);
    CHECK(sscanf(text, "%x:%x:%x:%x\n", parts, parts + 1, parts + 2, parts + 3) == 4);
    unsigned char bytes[8];
    for (int i = 0; i < 4; i++) {
        bytes[2 * i] = parts[i] >> 8;
        bytes[2 * i + 1] = parts[i];
    }
    CHECK(memcmp(bytes, &guid, sizeof bytes) == 0);
    close(fd);
}

static void handle(int signal) {
    (void)signal;
    opened_by_handler = open(guid_path, O_RDONLY);
}

int main(int argc, char **argv) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_device *device = list[0];
    const char *name = ibv_get_device_name(device);
    CHECK(strcmp(device->dev_name, "uverbs0") == 0);
    CHECK(strcmp(device->dev_path, "/sys/class/infiniband_verbs/uverbs0") == 0);
    CHECK(strcmp(device->ibdev_path, "/sys/class/infiniband/softnic0") == 0);
    __be64 guid = ibv_get_device_guid(device);
    snprintf(guid_path, sizeof guid_path, "%s/node_guid", device->ibdev_path);

    read_guid(open(guid_path, O_RDONLY), guid);
    read_guid(open64(guid_path, O_RDONLY), guid);
    read_guid(openat(AT_FDCWD, guid_path, O_RDONLY), guid);
    read_guid(openat64(AT_FDCWD, guid_path, O_RDONLY), guid);
    FILE *file = fopen(guid_path, "r");
    CHECK(file);
    read_guid(dup(fileno(file)), guid);
    CHECK(fclose(file) == 0 && (file = fopen64(guid_path, "r")) && fclose(file) == 0);
    CHECK(access(guid_path, R_OK) == 0 && euidaccess(guid_path, R_OK) == 0);
    CHECK(eaccess(guid_path, R_OK) == 0 && faccessat(AT_FDCWD, guid_path, R_OK, 0) == 0);

    struct stat found;
    struct stat64 found64;
    struct statx foundx;
    const char *node = "/dev/infiniband/uverbs0";
    CHECK(stat(node, &found) == 0 && S_ISCHR(found.st_mode));
    CHECK(stat64(node, &found64) == 0 && S_ISCHR(found64.st_mode));
    CHECK(fstatat(AT_FDCWD, node, &found, 0) == 0 && S_ISCHR(found.st_mode));
    CHECK(fstatat64(AT_FDCWD, node, &found64, 0) == 0 && S_ISCHR(found64.st_mode));
    CHECK(statx(AT_FDCWD, node, 0, STATX_TYPE, &foundx) == 0 && S_ISCHR(foundx.stx_mode));
    CHECK(lstat(guid_path, &found) == 0 && S_ISREG(found.st_mode));
    CHECK(lstat64(guid_path, &found64) == 0 && S_ISREG(found64.st_mode));
    CHECK(access("/dev/infiniband/rdma_cm", R_OK | W_OK) == 0);

    DIR *folder = opendir("/sys/class/infiniband");
    CHECK(folder && closedir(folder) == 0);
    struct dirent **entries;
    int number = scandir("/sys/class/infiniband", &entries, NULL, alphasort);
    CHECK(count(entries, number) == 1);
    struct dirent64 **entries64;
    number = scandir64("/sys/class/infiniband", &entries64, NULL, alphasort64);
    CHECK(count((struct dirent **)entries64, number) == 1);

    char text[PATH_MAX];
    CHECK(readlink(node, text, sizeof text) > 0);
    CHECK(readlinkat(AT_FDCWD, node, text, sizeof text) > 0);
    CHECK(realpath(device->ibdev_path, text) == text && strcmp(text, device->ibdev_path) == 0);
    char *resolved = canonicalize_file_name(device->dev_path);
    CHECK(resolved && strcmp(resolved, device->dev_path) == 0);
    free(resolved);

    /* libibverbs opens files itself. */
    CHECK(ibv_read_sysfs_file(device->ibdev_path, "ports/1/gid_attrs/types/0", text, sizeof text) == 7);
    CHECK(strcmp(text, "RoCE v2") == 0);
    snprintf(text, sizeof text, "/sys/class/infiniband/%s/ports/1/state", name);
    file = fopen(text, "r");
    CHECK(file && fgets(text, sizeof text, file) && strcmp(text, "4: ACTIVE\n") == 0);
    fclose(file);

    /* Errors are those of the C library, and a success leaves errno. */
    CHECK(open("/sys/class/infiniband/none", O_RDONLY) == -1 && errno == ENOENT);
    errno = 77;
    CHECK(access(guid_path, R_OK) == 0 && errno == 77);
    char long_path[2 * PATH_MAX] = "/sys/class/infiniband/";
    memset(long_path + strlen(long_path), 'x', PATH_MAX);
    CHECK(open(long_path, O_RDONLY) == -1 && errno == ENAMETOOLONG);

    /* Other paths are the machine's, and a new file has the mode of the call. */
    CHECK(stat("/sys/class", &found) == 0 && stat("/dev/null", &found) == 0);
    CHECK(argc == 2);
    umask(0);
    int fd = open(argv[1], O_CREAT | O_EXCL | O_WRONLY, 0640);
    CHECK(fd >= 0 && fstat(fd, &found) == 0 && (found.st_mode & 0777) == 0640);

    /* In a handler, and after the environment is gone. */
    clearenv();
    signal(SIGUSR1, handle);
    raise(SIGUSR1);
    read_guid(opened_by_handler, guid);
    ibv_free_device_list(list);
    return 0;
}
