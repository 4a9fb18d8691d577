# Clients of `run.sh`, in the folder of the server. The last line of each is the rate and the longest request.

# Prints the rate of N requests in the time since the start, and the longest in seconds.
client_report() {
    awk -v n="$1" -v start="$2" -v now="$(date +%s.%N)" -v longest="$3" \
        'BEGIN { printf "%.1f/s, longest %.2f s\n", n / (now - start), longest }'
}

# Twenty files by one process of curl, each compared. Arguments: options.
client_curls() {
    local i start arguments=()
    rm -f got.*
    for i in $(seq $CLIENTS); do arguments+=(-o "got.$i" "$URL/blob"); done
    start=$(date +%s.%N)
    run curl -ksSf -Z --parallel-immediate --parallel-max $CLIENTS -w '%{time_total}\n' "$@" "${arguments[@]}" >times || return
    for i in $(seq $CLIENTS); do cmp "got.$i" "$WORK/www/blob" || return; done
    client_report $CLIENTS "$start" "$(sort -g times | tail -n 1)"
}
client_curl() { URL=http://$A:$PORT client_curls --http1.1; }
client_curl_tls() { URL=https://$A:$((PORT + 1)) client_curls --http1.1; }
client_curl_h2() { URL=https://$A:$((PORT + 1)) client_curls --http2; }
client_curl_proxy() { URL=http://$A:$((PORT + 2)) client_curls --http1.1 -x "http://$A:$((PORT + 3))"; }
client_curl_connect() { URL=https://$A:$((PORT + 1)) client_curls --http1.1 -p -x "http://$A:$((PORT + 3))"; }

# Compares each body.
client_wrk_of() {
    run wrk -t 2 -c $CLIENTS -d 10 --timeout 20 --latency -s "$TESTS/compare.lua" "$1" -- "$WORK/www/$2" >wrk
    cat wrk >&2
    grep -q '^0 wrong$' wrk && ! grep -Eq 'Socket errors|Non-2xx|^ *0 requests in' wrk || return
    awk '/^Requests\/sec/ { rate = $2 } $1 == "Latency" && NF == 5 && !longest { longest = $4 } END { print rate "/s, longest " longest }' wrk
}
client_wrk() { client_wrk_of "http://$A:$PORT/small" small; }
client_wrk_blob() { client_wrk_of "http://$A:$PORT/blob" blob; }
client_wrk_tls() { client_wrk_of "https://$A:$((PORT + 1))/small" small; }

client_ab_of() {
    run ab -q -c $CLIENTS -s 60 "$@" >ab || { cat ab >&2; return 1; }
    cat ab >&2
    grep -q 'Failed requests: *0$' ab && ! grep -q 'Non-2xx' ab || return
    awk '/^Requests per second/ { rate = $4 } / 100% / { longest = $2 } END { print rate "/s, longest " longest / 1000 " s" }' ab
}
client_ab() { client_ab_of -n 100 "http://$A:$PORT/small"; }
client_ab_keep() { client_ab_of -k -n 400 "http://$A:$PORT/small"; }
client_ab_post() { client_ab_of -n 40 -p "$WORK/www/blob" -T application/octet-stream "http://$A:$PORT/length"; }

client_h2load_of() {
    run h2load -c $CLIENTS -n 400 "$@" >h2load || { cat h2load >&2; return 1; }
    cat h2load >&2
    grep -q '400 succeeded, 0 failed, 0 errored, 0 timeout' h2load && grep -q "($((400 * SMALL_SIZE))) data" h2load || return
    awk '/^finished in/ { rate = $4 } /^time for request/ { longest = $5 } END { print rate "/s, longest " longest }' h2load
}
client_h2load_h1() { client_h2load_of --h1 "http://$A:$PORT/small"; }
client_h2load() { client_h2load_of -m 4 "https://$A:$((PORT + 1))/small"; }

# The web server's proxy to itself.
client_h2load_proxy() { client_h2load_of -m 4 "https://$A:$((PORT + 1))/up/small"; }
client_curl_proxied() { URL=https://$A:$((PORT + 1))/up client_curls --http2; }

# Runs a function by number, 20 at once. Each prints nothing but errors, and fails if a byte is wrong.
client_at_once() {
    local i start pids=() longest code=0
    rm -f took.*
    start=$(date +%s.%N)
    for i in $(seq $CLIENTS); do
        (
            began=$(date +%s%N)
            "$1" "$i" >&2 || exit
            echo $((($(date +%s%N) - began) / 1000000)) >"took.$i"
        ) &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
    [ $code = 0 ] || return $code
    longest=$(cat took.* | sort -n | tail -n 1)
    client_report $CLIENTS "$start" "$(awk -v ms="$longest" 'BEGIN { print ms / 1000 }')"
}

client_psql_one() {
    run psql -h "$A" -p "$PORT" -U nobody postgres -At \
        -c "select md5(string_agg(line, '' order by n)) from lines" \
        -c "select line from lines order by n" >"rows.$1" || return
    [ "$(head -n 1 "rows.$1")" = "$(tail -n +2 "rows.$1" | tr -d '\n' | md5sum | cut -c 1-32)" ]
}
client_psql() { client_at_once client_psql_one; }
client_pgbench() {
    run pgbench -h "$A" -p "$PORT" -U nobody -n -S -c $CLIENTS -j 2 -T 6 -l --log-prefix=pgbench postgres >pgbench || return
    cat pgbench >&2
    grep -q 'number of failed transactions: 0' pgbench || return
    echo "$(awk '/^tps/ { print $3 }' pgbench)/s, longest $(cat pgbench.[0-9]* | awk '$3 > m { m = $3 } END { print m / 1e6 }') s"
}

client_mariadb_one() {
    run mariadb -h "$A" -P "$PORT" -u x -Nr $OPTIONS \
        -e "select md5(group_concat(line order by n separator '')) from t.lines; select line from t.lines order by n" >"rows.$1" || return
    [ "$(head -n 1 "rows.$1")" = "$(tail -n +2 "rows.$1" | tr -d '\n' | md5sum | cut -c 1-32)" ]
}
client_mariadb() { client_at_once client_mariadb_one; }
client_mariadb_tls() { OPTIONS=--ssl client_at_once client_mariadb_one; }

client_ldapsearch_one() {
    run ldapsearch -x -H "ldap://$A:$PORT" -b dc=x -LLL -o ldif-wrap=no '(cn=*)' >"found.$1" && cmp "found.$1" expected
}
client_ldapsearch() { client_at_once client_ldapsearch_one; }
client_ldapadd_one() {
    local text login=(-x -H "ldap://$A:$PORT" -D cn=admin,dc=x -w secret)
    text=$1$(base64 -w 0 $WORK/www/small)
    printf 'dn: cn=added%s,dc=x\nobjectClass: device\ncn: added%s\ndescription: %s\n' "$1" "$1" "$text" |
        run ldapadd "${login[@]}" && run ldapcompare "${login[@]}" "cn=added$1,dc=x" "description:$text" | grep -q TRUE &&
        run ldapdelete "${login[@]}" "cn=added$1,dc=x"
}
client_ldapadd() { client_at_once client_ldapadd_one; }

# The server's file has each line of each client.
client_logged() {
    for _ in $(seq 300); do
        [ "$(wc -l <received)" -ge "$(wc -l <sent)" ] && break
        sleep 0.2
    done
    sort sent >sent.sorted && sed 's/^ *//' received | sort | cmp - sent.sorted >&2
}
client_logger_one() {
    seq -f "client $1 line %g" 500 >"lines.$1"
    run logger -T -n "$A" -P "$PORT" -t x -f "lines.$1"
}
client_logger() {
    : >received
    local report
    report=$(client_at_once client_logger_one) || return
    cat lines.* >sent
    client_logged && echo "$report"
}
client_rsyslogd() {
    : >received
    seq -f 'forwarded line %g' 20000 >sent
    cat >client.conf <<CONF
module(load="imfile")
input(type="imfile" file="$FOLDER/source" tag="x" freshStartTail="off")
global(workDirectory="$FOLDER")
action(type="omfwd" target="$A" port="$PORT" protocol="tcp" action.resumeRetryCount="-1" action.resumeInterval="1")
CONF
    local start pid
    cp sent source
    start=$(date +%s.%N)
    run rsyslogd -n -f client.conf -i "$FOLDER/client.pid" >&2 &
    pid=$!
    client_logged
    local code=$?
    kill "$(cat client.pid)"
    wait $pid
    client_report 20000 "$start" 0
    return $code
}

client_java() { run java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$FOLDER" Client "http://$A:$PORT/blob" "$WORK/www/blob" $CLIENTS; }
