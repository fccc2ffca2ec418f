/*
 * fuzz_NAME CORPUS...: gives every file of the named folders (or the named files) to a fuzz target, once. So what a
 * fuzzer found stays found, without a fuzzer. A folder that is missing or empty is an error: it would prove nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The target gets an allocation of exactly the file's size, so that a sanitizer sees a read past its end. */
static bool replay_file(const char *path, long size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    bool read = f != NULL && data != NULL && fread(data, 1, (size_t)size, f) == (size_t)size;
    if (read) {
        (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    } else {
        (void)fprintf(stderr, "%s: cannot be read\n", path);
    }
    free(data);
    if (f != NULL) {
        (void)fclose(f);
    }
    return read;
}

/* The number of files replayed, or -1 after telling what is wrong. */
static int replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    if (!S_ISDIR(st.st_mode)) {
        return replay_file(path, (long)st.st_size) ? 1 : -1;
    }
    struct dirent **names = NULL;
    int n_names = scandir(path, &names, NULL, alphasort), n_files = n_names < 0 ? -1 : 0;
    for (int i = 0; i < n_names; i++) {
        char inside[PATH_MAX];
        int length = snprintf(inside, sizeof inside, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && n_files >= 0) {
            int more = length < (int)sizeof inside ? replay(inside) : -1;
            n_files = more < 0 ? -1 : n_files + more;
        }
        free(names[i]);
    }
    free(names);
    if (n_files == 0) {
        (void)fprintf(stderr, "%s: empty\n", path);
        n_files = -1;
    }
    return n_files;
}

int main(int argc, char **argv)
{
    int n_files = 0;
    for (int i = 1; i < argc; i++) {
        int more = replay(argv[i]);
        if (more < 0) {
            return 1;
        }
        n_files += more;
    }
    (void)printf("%s: %d inputs\n", argv[0], n_files);
    return n_files > 0 ? 0 : 1;
}
