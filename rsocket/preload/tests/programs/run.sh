#!/bin/bash
# Servers and clients of the distribution over TCP and over rsockets, with 20 connections at once:
#
#   cargo xtask soft-roce run --backend uml -- 'bash rsocket/preload/tests/programs/run.sh [SERVER | SERVER:CLIENT]...'
#
# A line for each client: exit code (0: each byte is right, or each length where the client sees no more), rate, the longest
# request, RDMA packets and TCP segments, and the log's reasons with their counts. The modes, "tcp rdma", are in $MODES.
# `CALLS.md` has the results.

TESTS=$(cd "$(dirname "$0")" && pwd)
LIBRARY=${LIBRARY:-$TESTS/../../../../target/debug/librspreload.so}
WORK=/run/programs
LOG=$WORK/log
COUNTERS=/sys/class/infiniband/rxe0/ports/1/hw_counters
# Limit of a client, in seconds.
LIMIT=${LIMIT:-100}
CLIENTS=20
BLOB_SIZE=1048576
SMALL_SIZE=1400
export TESTS WORK A CLIENTS BLOB_SIZE SMALL_SIZE

. "$TESTS/servers.sh"
. "$TESTS/clients.sh"

# Runs a program with the library, or without it over TCP.
run() {
    if [ "$MODE" = rdma ]; then
        env LD_PRELOAD="$LIBRARY" ${FORKS:+RDMAV_FORK_SAFE=1} RSOCKET_PRELOAD_LOG=$LOG "$@"
    else
        "$@"
    fi
}
export -f run

# The same without a shell that waits for the program.
replace() {
    if [ "$MODE" = rdma ]; then
        exec env LD_PRELOAD="$LIBRARY" ${FORKS:+RDMAV_FORK_SAFE=1} RSOCKET_PRELOAD_LOG=$LOG "$@"
    else
        exec "$@"
    fi
}

packets() { cat $COUNTERS/sent_pkts; }
segments() { awk '/^Tcp:/ && ++n == 2 { print $12 }' /proc/net/snmp; }

await_listener() {
    local limit=$((SECONDS + 60))
    while [ $SECONDS -lt $limit ]; do
        ss -ltnH | grep -q ":$((PORT + OFFSET)) " && return
        rdma resource show cm_id | grep LISTEN | grep -q ":$((PORT + OFFSET)) " && return
        kill -0 "$SERVER_PID" 2>/dev/null || break
        sleep 0.1
    done
    echo "$SERVER $MODE: no listener"
    tail -n 5 "$FOLDER/server.log"
    return 1
}

# Shows the log's lines since a line number, without numbers and addresses, with their counts.
reasons() {
    tail -n +"$1" $LOG | sed -E 's/^[^:]*: //; s/descriptor [0-9]+: //; s/[0-9]+(\.[0-9]+){3}(:[0-9]+)?/ADDRESS/g; s/[0-9]+/N/g' |
        sort | uniq -c | sort -rn | head -n 6 | sed 's/^ */    /'
}

run_client() {
    local client=$1 lines before_packets before_segments start end code
    lines=$(($(wc -l <$LOG) + 1))
    before_packets=$(packets) before_segments=$(segments)
    start=$(date +%s%N)
    (cd "$FOLDER" && timeout -k 2 "$LIMIT" bash -c "client_$client") >"$FOLDER/$client.out" 2>"$FOLDER/$client.err"
    code=$?
    end=$(date +%s%N)
    # The last packets of closed streams.
    sleep 0.3
    printf '%s:%s %s: code %d, %d ms, %s, %d packets, %d segments\n' "$SERVER" "$client" "$MODE" $code \
        $(((end - start) / 1000000)) "$(tail -n 1 "$FOLDER/$client.out")" \
        $(($(packets) - before_packets)) $(($(segments) - before_segments))
    [ $code = 0 ] || tail -n 6 "$FOLDER/$client.err" | cut -c 1-200 | sed 's/^/    ! /'
    [ "$MODE" = tcp ] || reasons "$lines"
}

# Ends the session of the server.
end_server() {
    local session=$SERVER_PID signal
    for signal in TERM KILL; do
        for pid in $(pgrep -s "$session"); do kill -$signal "$pid" 2>/dev/null; done
        for _ in $(seq 30); do
            pgrep -s "$session" >/dev/null || return
            sleep 0.1
        done
    done
}

run_server() {
    SERVER=$1 FORKS='' OFFSET=0 PROGRAMS='' CLIENTS_OF='' FOLDER=$WORK/$1.$MODE
    "server_$SERVER"_settings
    local program
    for program in $PROGRAMS; do
        command -v "$program" >/dev/null && continue
        echo "$SERVER: skipped, as there is no $program"
        return
    done
    PORT=$((PORT + 10))
    mkdir -p "$FOLDER" && chmod 777 "$FOLDER"
    export PORT FOLDER MODE FORKS LIBRARY LOG
    (cd "$FOLDER" && "server_$SERVER"_prepare) >"$FOLDER/prepare.log" 2>&1
    local lines=$(($(wc -l <$LOG) + 1))
    setsid bash -c "cd $FOLDER; server_$SERVER" >"$FOLDER/server.log" 2>&1 &
    SERVER_PID=$!
    if await_listener; then
        [ "$MODE" = tcp ] || reasons "$lines"
        local client
        for client in $CLIENTS_OF; do
            [ -n "$2" ] && [ "$2" != "$client" ] && continue
            run_client "$client"
        done
    fi
    end_server
    [ -z "$SHOW" ] || tail -n 20 "$FOLDER/server.log"
}

mkdir -p $WORK/www
chmod 777 $WORK
: >$LOG && chmod 666 $LOG
/usr/bin/python3 -c 'import random, sys; sys.stdout.buffer.write(random.Random(5).randbytes(int(sys.argv[1])))' $BLOB_SIZE >$WORK/www/blob
head -c $SMALL_SIZE $WORK/www/blob >$WORK/www/small
chmod -R a+rX $WORK/www
openssl req -x509 -newkey rsa:2048 -nodes -keyout $WORK/key -out $WORK/certificate -days 9 -subj /CN=x 2>/dev/null
cat $WORK/certificate $WORK/key >$WORK/both
chmod 644 $WORK/key $WORK/both
export PATH=$PATH:/usr/sbin:$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
export -f replace
for name in $(declare -F | awk '$3 ~ /^(server|client)_/ { print $3 }'); do export -f "${name?}"; done
PORT=8000
for row in ${@:-$ALL_SERVERS}; do
    client=${row#*:}
    [ "$client" != "$row" ] || client=
    for MODE in ${MODES:-tcp rdma}; do run_server "${row%%:*}" "$client"; done
done
