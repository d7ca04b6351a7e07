/* Notes the clock in its first instruction, in the file named first; with a second argument
   it then stays, asleep. Static, so that no loader runs before it. */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **words)
{
    struct timespec now;
    char name[4096];
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (count > 1) {
        snprintf(name, sizeof name, "%s.new", words[1]);
        int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dprintf(file, "%lld", now.tv_sec * 1000000000LL + now.tv_nsec);
        close(file);
        rename(name, words[1]);
    }
    while (count > 2)
        pause();
    return 0;
}
