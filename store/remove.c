/* remove: the end of a temporary data folder. */
#include "store/store_internal.h"

#include <stdio.h>
#include <unistd.h>

status store_remove_folder(const char *path)
{
    static const char *const files[] = {"index/data.mdb", "index/lock.mdb", "blobs/data.mdb",
            "blobs/lock.mdb", "lock", "format", "format.new"};
    static const char *const folders[] = {"index", "blobs"};
    char name[4096];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", path, files[i]);
        (void)unlink(name);
    }
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", path, folders[i]);
        (void)rmdir(name);
    }
    return rmdir(path) == 0 ? ST_OK : ST_ERR_IO;
}
