/* A program that includes the header of rsockets and nothing else. */

#include HEADER

int main(void) {
    struct pollfd asked = {.events = POLLIN};
    struct sockaddr_in name = {.sin_family = AF_INET};
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP};
    fd_set set;
    FD_ZERO(&set);
    errno = 0;
    return !(asked.events && name.sin_family && hints.ai_port_space && PROT_WRITE && IBV_QPT_RC) ||
           FD_ISSET(0, &set);
}
