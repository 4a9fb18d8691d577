//! Tables of `rds-info`, with the columns of rds-tools.

use std::{
    fmt::{self, Display, Formatter},
    net::{Ipv6Addr, SocketAddr},
};

use rds::info::{
    AddressFamily, ConnectionInfo, Counter, DeviceConnectionInfo, MessageInfo, Section, SocketInfo,
    Table,
};

/// A table with its section.
#[derive(Clone, Copy, Debug)]
pub struct Titled<'t> {
    /// The section of the table.
    pub section: Section,
    /// The rows.
    pub table: &'t Table,
    /// Whether all details of devices are printed.
    pub verbose: bool,
}

/// Width of a column of addresses.
fn width(family: AddressFamily) -> usize {
    match family {
        AddressFamily::V4 => 15,
        AddressFamily::V6 => 39,
    }
}

impl Display for Titled<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use Section::{
            Connections, DeviceConnections, RecvMessages, RetransMessages, SendMessages, Sockets,
        };
        match (self.section, self.table) {
            (_, Table::Counters(rows)) => counters(f, rows),
            (Connections(family), Table::Connections(rows)) => connections(f, width(family), rows),
            (Sockets(family), Table::Sockets(rows)) => sockets(f, width(family), rows),
            (DeviceConnections(family), Table::DeviceConnections(rows)) => {
                devices(f, width(family), rows, self.verbose)
            }
            (RecvMessages(family), Table::Messages(rows)) => {
                messages(f, "Receive", width(family), rows)
            }
            (SendMessages(family), Table::Messages(rows)) => {
                messages(f, "Send", width(family), rows)
            }
            (RetransMessages(family), Table::Messages(rows)) => {
                messages(f, "Retransmit", width(family), rows)
            }
            // A section decodes to its own type of table.
            _ => Ok(()),
        }
    }
}

fn counters(f: &mut Formatter<'_>, rows: &[Counter]) -> fmt::Result {
    writeln!(f, "\nCounters:\n{:>25} {:>16}", "CounterName", "Value")?;
    for row in rows {
        writeln!(f, "{:>25} {:>16}", row.name, row.value)?;
    }
    Ok(())
}

/// Columns of two addresses with ports.
fn ends(w: usize, local: SocketAddr, peer: SocketAddr) -> String {
    let (ip, port) = (local.ip(), local.port());
    format!("{ip:>w$} {port:>5} {:>w$} {:>5}", peer.ip(), peer.port())
}

fn sockets(f: &mut Formatter<'_>, w: usize, rows: &[SocketInfo]) -> fmt::Result {
    writeln!(
        f,
        "\nRDS Sockets:\n{:>w$} {:>5} {:>w$} {:>5} {:>10} {:>10} {:>8}",
        "BoundAddr", "BPort", "ConnAddr", "CPort", "SndBuf", "RcvBuf", "Inode"
    )?;
    for row in rows {
        let ends = ends(w, row.local, row.peer);
        writeln!(
            f,
            "{ends} {:>10} {:>10} {:>8}",
            row.send_limit, row.recv_limit, row.inode
        )?;
    }
    Ok(())
}

/// Letters of the bits of [`rds::info::ConnectionFlags`]; Linux 6.1 does not set the last.
const FLAGS: [(u8, char); 4] = [(1, 's'), (2, 'c'), (4, 'C'), (8, 'E')];

fn connections(f: &mut Formatter<'_>, w: usize, rows: &[ConnectionInfo]) -> fmt::Result {
    writeln!(
        f,
        "\nRDS Connections:\n{:>w$} {:>w$} {:>4} {:>16} {:>16} {:>4}",
        "LocalAddr", "RemoteAddr", "Tos", "NextTX", "NextRX", "Flgs"
    )?;
    for row in rows {
        let letter = |(bit, letter)| match row.flags.bits() & bit {
            0 => '-',
            _ => letter,
        };
        let flags: String = FLAGS.map(letter).iter().collect();
        writeln!(
            f,
            "{:>w$} {:>w$} {:>4} {:>16} {:>16} {flags}",
            row.local, row.peer, row.tos, row.next_tx, row.next_rx
        )?;
    }
    Ok(())
}

fn messages(f: &mut Formatter<'_>, queue: &str, w: usize, rows: &[MessageInfo]) -> fmt::Result {
    writeln!(
        f,
        "\n{queue} Message Queue:\n{:>w$} {:>5} {:>w$} {:>5} {:>4} {:>16} {:>10}",
        "LocalAddr", "LPort", "RemoteAddr", "RPort", "Tos", "Seq", "Bytes"
    )?;
    for row in rows {
        let ends = ends(w, row.local, row.peer);
        writeln!(
            f,
            "{ends} {:>4} {:>16} {:>10}",
            row.tos, row.sequence, row.len
        )?;
    }
    Ok(())
}

fn devices(
    f: &mut Formatter<'_>,
    w: usize,
    rows: &[DeviceConnectionInfo],
    verbose: bool,
) -> fmt::Result {
    writeln!(
        f,
        "\nRDS IB Connections:\n{:>w$} {:>w$} {:>4} {:>3} {:>32} {:>32}",
        "LocalAddr", "RemoteAddr", "Tos", "SL", "LocalDev", "RemoteDev"
    )?;
    for row in rows {
        write!(
            f,
            "{:>w$} {:>w$} {:>4} {:>3} {:>32} {:>32}",
            row.local,
            row.peer,
            row.tos,
            row.sl,
            Ipv6Addr::from(row.local_gid),
            Ipv6Addr::from(row.peer_gid)
        )?;
        if verbose {
            write!(
                f,
                "  send_wr={}, recv_wr={}, send_sge={}, rdma_mr_max={}, rdma_mr_size={}, cache_allocs={}",
                row.max_send_wr,
                row.max_recv_wr,
                row.max_send_sge,
                row.mr_max,
                row.mr_size,
                row.cache_allocs
            )?;
        }
        writeln!(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output captured from a kernel; see the tests of [`rds::info`].
    const KERNEL: &str = include_str!("../../rds/proto/src/info/kernel-6.1.txt");

    /// Lines printed for a table of the captured output.
    fn lines(option: i32, verbose: bool) -> Vec<String> {
        let section = Section::from_option(option).unwrap();
        let start = format!("{option} ");
        let line = KERNEL
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap();
        let hex = line.rsplit(' ').next().unwrap().trim_matches('-');
        let bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let table = section.decode(&bytes).unwrap();
        let titled = Titled {
            section,
            table: &table,
            verbose,
        };
        titled.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn counter_table_has_names() {
        let lines = lines(10_000, false);
        assert_eq!(lines[..2], ["", "Counters:"]);
        assert_eq!(lines[2], "              CounterName            Value");
        assert_eq!(lines[3], "               conn_reset                0");
    }

    #[test]
    fn socket_table_has_both_addresses() {
        assert_eq!(
            lines(10_006, false),
            [
                "",
                "RDS Sockets:",
                "      BoundAddr BPort        ConnAddr CPort     SndBuf     RcvBuf    Inode",
                "       10.9.0.2  4200       10.9.0.99  4999    2097152    2097152      404",
            ]
        );
        let wide = lines(10_015, false);
        assert_eq!(wide[3].len(), wide[2].len());
        assert_eq!(
            wide[3].trim_start(),
            lines(10_006, false)[3]
                .trim_start()
                .replace(" 10.9.0.99", &format!("{:>34}", "10.9.0.99"))
        );
    }

    #[test]
    fn connection_table_has_flag_letters() {
        let lines = lines(10_001, false);
        assert_eq!(
            lines[..3],
            [
                "",
                "RDS Connections:",
                "      LocalAddr      RemoteAddr  Tos           NextTX           NextRX Flgs",
            ]
        );
        let expected =
            "       10.9.0.2        10.9.0.2    0                2                0 --C-";
        assert!(lines.contains(&expected.to_owned()), "{lines:#?}");
        let peer = "       10.9.0.2        10.9.0.1    0               18               18 --C-";
        assert!(lines.contains(&peer.to_owned()), "{lines:#?}");
    }

    #[test]
    fn queue_tables_have_titles() {
        assert_eq!(
            lines(10_005, false),
            [
                "",
                "Receive Message Queue:",
                "      LocalAddr LPort      RemoteAddr RPort  Tos              Seq      Bytes",
                "       10.9.0.2  4200        10.9.0.2  4200    0                1        300",
            ]
        );
        assert_eq!(lines(10_003, false)[1], "Send Message Queue:");
        assert_eq!(lines(10_004, false)[1], "Retransmit Message Queue:");
        assert_eq!(lines(10_004, false).len(), 3);
    }

    #[test]
    fn device_table_is_longer_when_verbose() {
        let short = lines(10_008, false);
        assert_eq!(
            short[2],
            "      LocalAddr      RemoteAddr  Tos  SL                         LocalDev                        RemoteDev"
        );
        let expected = "       10.9.0.2        10.9.0.2    0   0                  ::ffff:10.9.0.2                  ::ffff:10.9.0.2";
        assert!(short.contains(&expected.to_owned()), "{short:#?}");
        let more = "  send_wr=256, recv_wr=1024, send_sge=8, rdma_mr_max=4096, rdma_mr_size=257, cache_allocs=4";
        let long = lines(10_008, true);
        assert!(long.contains(&format!("{expected}{more}")), "{long:#?}");
    }
}
