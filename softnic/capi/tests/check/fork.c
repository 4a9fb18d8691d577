/* Opens a device, and makes a child that uses the parent's objects; with an argument, the child uses none. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;

	if (!ctx) {
		perror("ibv_open_device");
		exit(1);
	}
	return ctx;
}

int main(int argc, char **argv)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	int status;
	pid_t child = fork();

	(void)argv;
	if (child == 0) {
		alarm(60);
		if (argc == 1)
			ibv_dealloc_pd(pd);
		exit(0);
	}
	if (waitpid(child, &status, 0) != child)
		return 1;
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
	printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
	return 0;
}
