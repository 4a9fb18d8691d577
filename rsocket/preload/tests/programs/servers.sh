# Servers of `run.sh`: for each its settings (needed programs, clients, whether it forks), its files, and its command, run in its
# folder. HTTP is at $PORT, HTTPS at the next port.

ALL_SERVERS='apache nginx gunicorn postgres haproxy php mariadb squid tinyproxy slapd rsyslog java'
WEB_CLIENTS='curl wrk wrk_blob ab ab_keep h2load_h1'
TLS_CLIENTS='curl_tls curl_h2 wrk_tls h2load'

server_apache_settings() { PROGRAMS='apache2 curl wrk ab h2load' CLIENTS_OF="$WEB_CLIENTS $TLS_CLIENTS" FORKS=1; }
server_apache_prepare() {
    local module
    for module in mpm_event authz_core http2 socache_shmcb ssl; do
        echo "LoadModule ${module}_module /usr/lib/apache2/modules/mod_$module.so"
    done >apache.conf
    # AcceptFilter as by default: TCP_DEFER_ACCEPT.
    cat >>apache.conf <<CONF
ServerRoot $FOLDER
ServerName x
Listen $A:$PORT
Listen $A:$((PORT + 1)) https
PidFile $FOLDER/pid
ErrorLog $FOLDER/error.log
User nobody
Group nogroup
Protocols h2 http/1.1
DocumentRoot $WORK/www
<Directory $WORK/www>
Require all granted
</Directory>
<VirtualHost $A:$((PORT + 1))>
SSLEngine on
SSLCertificateFile $WORK/both
</VirtualHost>
CONF
}
server_apache() { replace apache2 -D FOREGROUND -f "$FOLDER/apache.conf"; }

server_nginx_settings() {
    PROGRAMS='nginx curl wrk ab h2load' CLIENTS_OF="$WEB_CLIENTS $TLS_CLIENTS h2load_proxy curl_proxied" FORKS=1
}
server_nginx_prepare() { nginx_conf "root $WORK/www; location /up/ { proxy_pass http://$A:$PORT/; }" >nginx.conf; }
server_nginx() { replace nginx -e stderr -c "$FOLDER/nginx.conf"; }

# Prints the configuration of a server with these contents, at ports $1 and $2 behind the first argument.
nginx_conf() {
    cat <<CONF
daemon off; worker_processes 4; pid $FOLDER/nginx.pid; user nobody nogroup;
events { worker_connections 512; }
http {
    access_log off; sendfile on; tcp_nopush on; types_hash_max_size 2048; keepalive_requests 100000;
    client_body_temp_path $FOLDER; proxy_temp_path $FOLDER; fastcgi_temp_path $FOLDER; uwsgi_temp_path $FOLDER; scgi_temp_path $FOLDER;
    client_max_body_size 0; ssl_certificate $WORK/both; ssl_certificate_key $WORK/both;
    server { listen $A:${2:-$PORT}; listen $A:${3:-$((PORT + 1))} ssl http2; $1 }
}
CONF
}

server_gunicorn_settings() { PROGRAMS='gunicorn curl wrk ab h2load' CLIENTS_OF="$WEB_CLIENTS ab_post" FORKS=1; }
server_gunicorn_prepare() {
    cat >application.py <<'PY'
import os

def application(environ, start):
    body = environ["wsgi.input"].read()
    name = environ["PATH_INFO"]
    with open(os.environ["WORK"] + "/www/blob", "rb") as file:
        blob = file.read()
    if name == "/length":
        assert body == blob
        answer = b"%d\n" % len(body)
    else:
        answer = blob if name == "/blob" else blob[:int(os.environ["SMALL_SIZE"])]
    start("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]
PY
}
server_gunicorn() { replace /usr/bin/gunicorn -w 4 -b "$A:$PORT" application:application; }

server_postgres_settings() { PROGRAMS='postgres initdb psql pgbench' CLIENTS_OF='psql pgbench' FORKS=1; }
server_postgres_prepare() {
    chown nobody .
    setpriv --reuid=nobody --regid=nogroup --clear-groups initdb -D data -A trust
    echo 'host all all all trust' >>data/pg_hba.conf
    cat >>data/postgresql.conf <<CONF
listen_addresses = '$A'
port = $PORT
unix_socket_directories = '$FOLDER'
shared_buffers = 16MB
CONF
    setpriv --reuid=nobody --regid=nogroup --clear-groups pg_ctl -D data -w -l start.log start
    pgbench -h "$FOLDER" -p "$PORT" -U nobody -i -q postgres
    psql -h "$FOLDER" -p "$PORT" -U nobody postgres -c \
        "create table lines as select n, repeat(md5(n::text), 4) line from generate_series(1, 3000) n"
    setpriv --reuid=nobody --regid=nogroup --clear-groups pg_ctl -D data -w stop
}
server_postgres() { replace setpriv --reuid=nobody --regid=nogroup --clear-groups postgres -D data; }

server_haproxy_settings() { PROGRAMS='haproxy curl wrk ab h2load' CLIENTS_OF="$WEB_CLIENTS $TLS_CLIENTS"; }
server_haproxy_prepare() {
    cat >haproxy.conf <<CONF
global
    nbthread 4
    tune.bufsize 1200000
    tune.maxrewrite 1024
defaults
    mode http
    timeout connect 20s
    timeout client 60s
    timeout server 60s
frontend plain
    bind $A:$PORT
    default_backend servers
frontend tls
    bind $A:$((PORT + 1)) ssl crt $WORK/both alpn h2,http/1.1
    default_backend servers
backend servers
    http-reuse always
    server one $A:$((PORT + 2))
    server two $A:$((PORT + 3))
frontend files
    bind $A:$((PORT + 2))
    bind $A:$((PORT + 3))
    http-request return status 200 content-type x/y file $WORK/www/blob if { path /blob }
    http-request return status 200 content-type x/y file $WORK/www/small
CONF
}
server_haproxy() { replace haproxy -db -f haproxy.conf; }

server_php_settings() { PROGRAMS='php-fpm8.2 nginx curl wrk ab h2load' CLIENTS_OF="$WEB_CLIENTS ab_post" FORKS=1; }
server_php_prepare() {
    cat >fpm.conf <<CONF
[global]
error_log = $FOLDER/fpm.log
daemonize = no
[www]
user = nobody
group = nogroup
listen = $A:$((PORT + 2))
pm = static
pm.max_children = 6
CONF
    cat >index.php <<'PHP'
<?php
$blob = file_get_contents($_SERVER['WORK'] . '/www/blob');
if ($_SERVER['DOCUMENT_URI'] === '/length') {
    $answer = file_get_contents('php://input') === $blob ? "right\n" : http_response_code(500);
} else {
    $answer = $_SERVER['DOCUMENT_URI'] === '/blob' ? $blob : substr($blob, 0, (int) $_SERVER['SMALL_SIZE']);
}
header('Content-Type: application/octet-stream');
header('Content-Length: ' . strlen($answer));
echo $answer;
PHP
    nginx_conf "location / { fastcgi_pass $A:$((PORT + 2)); fastcgi_param SCRIPT_FILENAME $FOLDER/index.php;
        fastcgi_param DOCUMENT_URI \$document_uri; fastcgi_param REQUEST_METHOD \$request_method; fastcgi_param WORK $WORK;
        fastcgi_param SMALL_SIZE $SMALL_SIZE; fastcgi_param CONTENT_LENGTH \$content_length;
        fastcgi_param CONTENT_TYPE \$content_type; }" >nginx.conf
}
server_php() {
    run php-fpm8.2 -n -y fpm.conf &
    replace nginx -e stderr -c "$FOLDER/nginx.conf"
}

# User-Mode Linux has little address space, and no native AIO.
export MARIADB_SIZES='--innodb-log-file-size=4M --innodb-buffer-pool-size=8M --innodb-buffer-pool-size-max=64M --innodb-use-native-aio=0'
server_mariadb_settings() { PROGRAMS='mariadbd mariadb-install-db mariadb' CLIENTS_OF='mariadb mariadb_tls'; }
server_mariadb_prepare() {
    mariadb-install-db --no-defaults --user=root --datadir="$FOLDER/data" --auth-root-authentication-method=normal $MARIADB_SIZES
    cat >first.sql <<'SQL'
create database t;
create user x@'%';
grant all on *.* to x@'%';
set max_recursive_iterations = 3000;
create table t.lines (n int, line varchar(128));
insert into t.lines with recursive s(n) as (select 1 union all select n + 1 from s where n < 3000) select n, repeat(md5(n), 4) from s;
SQL
}
server_mariadb() {
    replace mariadbd --no-defaults --user=root --datadir="$FOLDER/data" --bind-address="$A" --port="$PORT" --socket="$FOLDER/socket" \
        $MARIADB_SIZES --group-concat-max-len=10000000 --init-file="$FOLDER/first.sql" --ssl-cert=$WORK/certificate --ssl-key=$WORK/key
}

# A forward proxy before nginx, and by accelerator mode for clients without proxies. `-N`: otherwise its worker is executed with a real
# user other than the effective one, and the loader ignores LD_PRELOAD.
server_squid_settings() { PROGRAMS='squid nginx curl wrk ab' CLIENTS_OF='curl wrk ab ab_keep curl_proxy curl_connect' FORKS=1; }
server_squid_prepare() {
    nginx_conf "root $WORK/www;" $((PORT + 2)) $((PORT + 1)) >nginx.conf
    cat >squid.conf <<CONF
http_port $A:$PORT accel name=accelerator defaultsite=x
http_port $A:$((PORT + 3))
acl accelerated myportname accelerator
acl SSL_ports port 1-65535
never_direct allow accelerated
http_access allow all
cache deny all
cache_peer $A parent $((PORT + 2)) 0 no-query originserver no-digest
access_log none
cache_log $FOLDER/cache.log
pid_filename $FOLDER/squid.pid
coredump_dir $FOLDER
pinger_enable off
netdb_filename none
shutdown_lifetime 0 seconds
visible_hostname x
CONF
}
server_squid() {
    run nginx -e stderr -c "$FOLDER/nginx.conf" &
    replace squid -N -f "$FOLDER/squid.conf"
}

server_tinyproxy_settings() { PROGRAMS='tinyproxy nginx curl' CLIENTS_OF='curl_proxy curl_connect' OFFSET=3; }
server_tinyproxy_prepare() {
    nginx_conf "root $WORK/www;" $((PORT + 2)) $((PORT + 1)) | sed 's/worker_processes 4;/master_process off;/' >nginx.conf
    printf 'Port %s\nListen %s\nTimeout 60\nMaxClients 100\nLogLevel Warning\n' $((PORT + 3)) "$A" >tinyproxy.conf
}
server_tinyproxy() {
    run nginx -e stderr -c "$FOLDER/nginx.conf" &
    replace tinyproxy -d -c tinyproxy.conf
}

server_slapd_settings() { PROGRAMS='slapd slapadd ldapsearch' CLIENTS_OF='ldapsearch ldapadd'; }
server_slapd_prepare() {
    mkdir data
    cat >slapd.conf <<CONF
include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile $FOLDER/pid
sizelimit unlimited
database mdb
suffix dc=x
rootdn cn=admin,dc=x
rootpw secret
maxsize 100000000
directory $FOLDER/data
CONF
    local i text
    text=$(head -c 600 $WORK/www/small | base64 -w 0)
    {
        printf 'dn: dc=x\nobjectClass: dcObject\nobjectClass: organization\no: x\ndc: x\n'
        for i in $(seq 300); do
            printf '\ndn: cn=entry%s,dc=x\nobjectClass: device\ncn: entry%s\ndescription: %s\n' "$i" "$i" "$i$text"
        done
    } >entries.ldif
    slapadd -q -f slapd.conf -l entries.ldif
    slapcat -f slapd.conf -o ldif-wrap=no | grep -Ev '^(structuralObjectClass|entryUUID|creatorsName|createTimestamp|entryCSN|modifiersName|modifyTimestamp):' |
        awk -v RS='' -v ORS='\n\n' '/^dn: cn=/' >expected
}
server_slapd() { replace slapd -d 0 -f slapd.conf -h "ldap://$A:$PORT"; }

server_rsyslog_settings() { PROGRAMS='rsyslogd logger' CLIENTS_OF='logger rsyslogd'; }
server_rsyslog_prepare() {
    cat >server.conf <<CONF
module(load="imtcp" maxSessions="100")
input(type="imtcp" address="$A" port="$PORT")
template(name="message" type="string" string="%msg%\n")
:msg, contains, "line" action(type="omfile" file="$FOLDER/received" template="message")
CONF
}
server_rsyslog() { replace rsyslogd -n -f server.conf -i "$FOLDER/pid"; }

server_java_settings() { PROGRAMS='java javac curl' CLIENTS_OF='curl wrk ab java'; }
server_java_prepare() { javac -d . "$TESTS/Server.java" "$TESTS/Client.java"; }
server_java() { replace java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 Server "$A" "$PORT" $WORK/www; }
