//! Programs from the distribution over rsockets: server, client, and the number of packets sent by the
//! device. A program moves at least a megabyte or some hundred requests; the device's counter shows whether
//! RDMA was used.

use std::{
    env, fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{FORKS, Preload, address, packets};

use Preload::{Ours, Theirs};

/// Size in bytes of the transferred file, unless the program generates its own data.
const SIZE: usize = 1 << 20;

/// A program with shell commands for both sides, run in a folder with a file `blob`.
struct Program {
    name: &'static str,
    server: &'static str,
    client: &'static str,
    /// Preload libraries of server and client. rdma-core 44 supports neither sockets with flags nor `epoll`;
    /// on both ends, iperf3's server fails for lack of `TCP_INFO`, and socat crashes.
    pairs: &'static [(Preload, Preload)],
    forks: bool,
    /// The server exits with its client.
    ends: bool,
    /// Minimum number of packets.
    packets: u64,
}

const MEGABYTE: u64 = SIZE as u64 / 4096;
const OWN: &[(Preload, Preload)] = &[(Ours, Ours)];
const BOTH: &[(Preload, Preload)] = &[(Ours, Ours), (Ours, Theirs)];

/// A persistent server, and a client that moves a megabyte.
const PLAIN: Program = Program {
    name: "",
    server: "",
    client: "",
    pairs: OWN,
    forks: false,
    ends: false,
    packets: MEGABYTE,
};

const CURL: &str = "timeout 90 curl -sS -o got http://$A:$PORT/blob && cmp got blob";

const PROGRAMS: &[Program] = &[
    Program {
        name: "iperf3",
        server: "exec iperf3 -s -1 -B $A -p $PORT",
        client: "timeout 90 iperf3 -c $A -p $PORT -n 1M",
        pairs: BOTH,
        ends: true,
        ..PLAIN
    },
    Program {
        name: "iperf3 -R",
        server: "exec iperf3 -s -1 -B $A -p $PORT",
        client: "timeout 90 iperf3 -c $A -p $PORT -n 1M -R",
        ends: true,
        ..PLAIN
    },
    Program {
        name: "http.server, curl",
        server: "exec /usr/bin/python3 -m http.server $PORT --bind $A",
        client: CURL,
        ..PLAIN
    },
    Program {
        name: "redis",
        server: "exec ./redis-server --bind $A --port $PORT --protected-mode no --save ''",
        client: "timeout 90 redis-benchmark -h $A -p $PORT -n 200 -c 4 -d 1000 -t set,get -q",
        packets: 2 * 2 * 200,
        ..PLAIN
    },
    Program {
        name: "memcached, python",
        server: "exec memcached -u nobody -l $A -p $PORT -U 0 -t 4",
        client: "timeout 90 /usr/bin/python3 $TESTS/memcached.py $A $PORT",
        packets: 2 * 4 * 20 * 10000 / 4096,
        ..PLAIN
    },
    Program {
        name: "iperf2, three streams",
        server: "exec iperf -s -B $A -p $PORT",
        // All streams begin before one ends: the server of iperf 2.1.8 may otherwise lock freed memory, over TCP too.
        client: "timeout 90 iperf -c $A -p $PORT -n 8M -P 3",
        packets: 24 * MEGABYTE,
        ..PLAIN
    },
    Program {
        name: "node, curl",
        server: "exec node $TESTS/server.js $A $PORT",
        client: "timeout 90 curl -sS --data-binary @blob http://$A:$PORT/ >answer && grep -q 'got 1048576 yyy' answer",
        ..PLAIN
    },
    Program {
        name: "node, node",
        server: "exec node $TESTS/server.js $A $PORT",
        client: "timeout 90 node $TESTS/client.js $A $PORT",
        packets: 5 * 500_000 / 4096,
        ..PLAIN
    },
    Program {
        name: "nginx, curl",
        server: "exec /usr/sbin/nginx -e stderr -c $PWD/nginx.conf -g 'daemon off; master_process off;'",
        client: CURL,
        ..PLAIN
    },
    Program {
        name: "nginx with workers, curl",
        server: "exec /usr/sbin/nginx -e stderr -c $PWD/nginx.conf -g 'daemon off; worker_processes 2;'",
        client: CURL,
        forks: true,
        ..PLAIN
    },
    Program {
        name: "openssl s_server, curl",
        server: "openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 9 -subj /CN=x \
                 2>req.log; exec openssl s_server -accept $A:$PORT -cert c.pem -key k.pem -WWW",
        client: "timeout 90 curl -ksS -o got https://$A:$PORT/blob && cmp got blob",
        ..PLAIN
    },
    Program {
        name: "socat",
        server: "exec socat -u TCP4-LISTEN:$PORT,bind=$A CREATE:got",
        // The client exits without closing its socket.
        client: "timeout 90 socat -u OPEN:blob TCP4:$A:$PORT",
        ends: true,
        ..PLAIN
    },
    Program {
        name: "nc",
        server: "exec $NC -l $A $PORT >got",
        client: "timeout 90 $NC -N $A $PORT <blob",
        ends: true,
        ..PLAIN
    },
];

/// Programs run with `--long` only, because of their many packages.
const MORE_PROGRAMS: &[Program] = &[
    Program {
        name: "nginx with keep-alive, ab",
        server: "exec /usr/sbin/nginx -e stderr -c $PWD/nginx.conf -g 'daemon off; master_process off;'",
        client: "timeout 90 ab -q -k -n 40 -c 4 http://$A:$PORT/blob >ab && grep -q 'Failed requests: *0$' ab",
        packets: 40 * MEGABYTE,
        ..PLAIN
    },
    Program {
        name: "nginx, wget of eight by one connection",
        server: "exec /usr/sbin/nginx -e stderr -c $PWD/nginx.conf -g 'daemon off; master_process off;'",
        client: "u=http://$A:$PORT/blob; timeout 90 wget -q -O eight $u $u $u $u $u $u $u $u && \
                 cat blob blob blob blob blob blob blob blob | cmp - eight",
        packets: 8 * MEGABYTE,
        ..PLAIN
    },
    Program {
        name: "lighttpd, curl",
        server: "printf 'server.document-root=\"%s\"\nserver.port=%s\nserver.bind=\"%s\"\n' $PWD $PORT $A >l.conf; \
                 exec lighttpd -D -f l.conf",
        client: CURL,
        ..PLAIN
    },
    Program {
        name: "haproxy before itself, curl",
        server: "printf 'global\n nbthread 1\n tune.bufsize 1200000\ndefaults\n mode http\n timeout connect 9s\n \
                 timeout client 20s\n timeout server 20s\nfrontend f\n bind %s:%s\n default_backend b\nbackend b\n \
                 server s %s:%s\nfrontend g\n bind %s:%s\n http-request return status 200 content-type x/y file %s\n' \
                 $A $PORT $A $((PORT + 5)) $A $((PORT + 5)) $PWD/blob >h.cfg; exec haproxy -db -f h.cfg",
        client: CURL,
        packets: 2 * MEGABYTE,
        ..PLAIN
    },
    Program {
        name: "redis with a replica",
        server: "exec ./redis-server --bind $A --port $PORT --protected-mode no --save '' \
                 --repl-diskless-sync yes --repl-diskless-sync-delay 0 --rdbcompression no",
        client: "tr '\\0' x <blob | redis-cli -h $A -p $PORT -x set big >/dev/null && \
                 (./redis-server --bind $A --port $((PORT + 5)) --protected-mode no --save '' --replicaof $A $PORT \
                 >replica.log 2>&1 & echo $! >pid); for i in $(seq 90); do \
                 [ \"$(redis-cli -h $A -p $((PORT + 5)) strlen big)\" = 1048576 ] && break; sleep 1; done; \
                 redis-cli -h $A -p $PORT wait 1 9000 >waited; kill $(cat pid); grep -q 1 waited",
        packets: 2 * MEGABYTE,
        ..PLAIN
    },
    Program {
        name: "ruby",
        server: "exec ruby -rsocket -e 's = TCPServer.new(ARGV[0], ARGV[1].to_i); loop { \
                 Thread.new(s.accept) { |c| while l = c.gets; c.write(l.upcase); end; c.close } }' $A $PORT",
        client: "timeout 90 ruby -rsocket -e 's = TCPSocket.new(ARGV[0], ARGV[1].to_i); 300.times { |i| \
                 s.puts \"line #{i}\"; raise unless s.gets == \"LINE #{i}\\n\" }; s.close_write; s.read' $A $PORT",
        packets: 600,
        ..PLAIN
    },
    Program {
        name: "ncat",
        server: "exec ncat -l $A $PORT --recv-only >got",
        client: "timeout 90 ncat --send-only $A $PORT <blob",
        ends: true,
        ..PLAIN
    },
    Program {
        name: "qemu-nbd, qemu-img",
        server: "exec qemu-nbd -t -f raw -b $A -p $PORT -x e blob",
        client: "timeout 90 qemu-img convert -O raw nbd://$A:$PORT/e got",
        ..PLAIN
    },
    Program {
        name: "nbdkit, nbdcopy",
        server: "exec nbdkit -f -i $A -p $PORT memory 1M",
        client: "timeout 90 nbdcopy blob nbd://$A:$PORT && timeout 90 nbdcopy nbd://$A:$PORT got",
        packets: 2 * MEGABYTE,
        ..PLAIN
    },
    Program {
        name: "postgres, psql",
        server: "B=$(ls -d /usr/lib/postgresql/*/bin | tail -1); chmod 777 . ..; unset LD_PRELOAD; \
                 su -s /bin/sh nobody -c \"$B/initdb -D $PWD/pg -A trust >initdb.log\"; \
                 echo 'host all all all trust' >>pg/pg_hba.conf; exec su -s /bin/sh nobody -c \"LD_PRELOAD=$LIBRARY \
                 exec $B/postgres -D $PWD/pg -h $A -p $PORT -k $PWD -c shared_buffers=16MB\"",
        client: "timeout 90 psql -h $A -p $PORT -U nobody postgres -At -c \
                 \"select repeat('x', 100) from generate_series(1, 10000)\" >rows && [ $(wc -c <rows) = 1010000 ]",
        forks: true,
        ..PLAIN
    },
];

/// Returns the name of OpenBSD's netcat: `nc.openbsd` on Debian, `nc` elsewhere, where other netcats also use
/// the name.
fn openbsd_nc() -> Result<&'static str, String> {
    for name in ["nc.openbsd", "nc"] {
        let help = Command::new(name).arg("-h").output();
        let Ok(help) = help else { continue };
        let text = [help.stdout, help.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        // This option is unique to OpenBSD's netcat.
        if text.contains("Shutdown the network socket after EOF") {
            return Ok(name);
        }
        let first = text.lines().next().unwrap_or("a program without help");
        return Err(format!(
            "`nc` is not OpenBSD's but \"{first}\": install netcat-openbsd"
        ));
    }
    Err("there is no `nc`: install netcat-openbsd".to_owned())
}

/// Creates the working folder of programs.
fn folder(port: u16) -> PathBuf {
    let folder = env::temp_dir().join(format!("rspreload-{port}"));
    fs::create_dir_all(&folder).unwrap();
    let blob: Vec<u8> = (0..=250).cycle().take(SIZE).collect();
    fs::write(folder.join("blob"), blob).unwrap();
    // The same program as redis-server, which acts by its name. The package redis-server would start a
    // server.
    drop(std::os::unix::fs::symlink(
        "/usr/bin/redis-check-rdb",
        folder.join("redis-server"),
    ));
    let conf = format!(
        "pid nginx.pid; events {{}} http {{ access_log off; client_body_temp_path .; proxy_temp_path .;\n\
         sendfile on; tcp_nopush on; types_hash_max_size 2048;\n\
         fastcgi_temp_path .; uwsgi_temp_path .; scgi_temp_path .;\n\
         server {{ listen {}:{port}; root {}; }} }}\n",
        address(),
        folder.display()
    );
    fs::write(folder.join("nginx.conf"), conf).unwrap();
    folder
}

fn start(program: &Program, line: &str, preload: Preload, port: u16) -> Child {
    let mut shell = Command::new("sh");
    // The shell itself does not use rsockets.
    shell.args(["-c", &format!("export LD_PRELOAD=$LIBRARY; {line}")]);
    shell.envs(preload.library().map(|library| ("LIBRARY", library)));
    shell
        .env("PORT", port.to_string())
        .env("TESTS", crate::linked(&crate::source(""), "tests"))
        .envs(openbsd_nc().map(|nc| ("NC", nc)))
        .current_dir(folder(port));
    if program.forks {
        shell.envs(FORKS.iter().copied());
    }
    shell.stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.spawn().unwrap()
}

/// Waits for a listener at a port, over RDMA, or over TCP with forks.
fn await_listener(port: u16, forks: bool, server: &mut Child) {
    let limit = Instant::now() + Duration::from_secs(100);
    let (program, arguments) = if forks {
        ("ss", "-ltn")
    } else {
        ("rdma", "resource show cm_id")
    };
    let port = format!(":{port} ");
    while Instant::now() < limit {
        let arguments = arguments.split(' ');
        let listed = Command::new(program).args(arguments).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let listens = |line: &str| line.contains("LISTEN") && line.contains(&port);
        if listed.lines().any(listens) {
            return;
        }
        if server.try_wait().unwrap().is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Waits for a program, killed after `seconds`. Returns its success and its output.
fn finish(mut program: Child, seconds: u64) -> (bool, String) {
    let limit = Instant::now() + Duration::from_secs(seconds);
    let ended = loop {
        if let Some(status) = program.try_wait().unwrap() {
            break status.success();
        }
        if Instant::now() > limit {
            // With the signal on which servers end their own children.
            let id = program.id().to_string();
            drop(Command::new("kill").arg(id).status());
            thread::sleep(Duration::from_secs(1));
            drop(program.kill());
            break false;
        }
        thread::sleep(Duration::from_millis(50));
    };
    let output = program.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (ended, String::from_utf8_lossy(&printed).into_owned())
}

/// Runs a program. Returns the number of packets sent by the device, or an error message.
fn run(program: &Program, server: Preload, client: Preload, port: u16) -> Result<u64, String> {
    if program.name == "nc" {
        openbsd_nc()?;
    }
    let folder = folder(port);
    let before = packets();
    let mut serving = start(program, program.server, server, port);
    await_listener(port, program.forks, &mut serving);
    let calling = start(program, program.client, client, port);
    let (called, client_said) = finish(calling, 100);
    let (served, server_said) = finish(serving, if program.ends && called { 60 } else { 0 });
    let packets = packets() - before;
    let got = fs::read(folder.join("got"));
    let same = got.is_err() || got.ok() == fs::read(folder.join("blob")).ok();
    if called && same && (served || !program.ends) && packets >= program.packets {
        return Ok(packets);
    }
    Err(format!(
        "called {called}, served {served}, same {same}, packets {packets}\n{client_said}\n{server_said}"
    ))
}

#[test]
fn common_programs_run_over_rdma() {
    run_all(PROGRAMS, 8100);
}

/// Programs run with `--long`, with their packages installed.
#[test]
fn packaged_programs_run_over_rdma() {
    if env::var_os("LONG").is_some() {
        run_all(MORE_PROGRAMS, 8500);
    } else {
        println!("  with --long only: {} programs", MORE_PROGRAMS.len());
    }
}

#[expect(clippy::print_stdout, reason = "the outcome of each program")]
fn run_all(programs: &[Program], first_port: u16) {
    let mut failures = vec![];
    for (program, port) in programs.iter().zip((first_port..).step_by(10)) {
        for (&(server, client), port) in program.pairs.iter().zip(port..) {
            let start = Instant::now();
            let ran = run(program, server, client, port);
            let seconds = start.elapsed().as_secs();
            let outcome = match &ran {
                Ok(packets) => format!("{packets} packets, {seconds} s"),
                Err(_) => "FAILED".to_owned(),
            };
            println!(
                "  {}: server {server:?}, client {client:?}: {outcome}",
                program.name
            );
            if let Err(why) = ran {
                failures.push(format!("{} {server:?} {client:?}: {why}", program.name));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
