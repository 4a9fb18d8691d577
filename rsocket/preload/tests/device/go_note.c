/* A program with the note of Go's linker, as Go's own compiler leaves it. */

#include <stdio.h>

__asm__(".pushsection .note.go.buildid, \"a\", %note\n"
        ".balign 4\n"
        ".long 4, 5, 4\n"
        ".ascii \"Go\\0\\0\"\n"
        ".ascii \"an-id\\0\\0\\0\"\n"
        ".popsection\n");

int main(void) {
    puts("all is well");
    return 0;
}
