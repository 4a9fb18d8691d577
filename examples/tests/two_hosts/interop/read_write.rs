//! The-geek-in-the-corner's second example.

use super::Cell;

const SERVER: &str = env!("CARGO_BIN_EXE_read-write-server");
const CLIENT: &str = env!("CARGO_BIN_EXE_read-write-client");

pub(super) fn cells(device: &str) -> Vec<Cell> {
    let iwarp = device == "siw";
    [
        ("write", "$A", "-4", 7101),
        ("write", "$A6", "", 7102),
        ("read", "$A", "-4", 7103),
        ("read", "$A6", "", 7104),
    ]
    .map(|(mode, address, family, port)| {
        let server = format!("{SERVER} {mode} {family} --port {port} --clients 1");
        let client = format!("{CLIENT} {mode} {address} {port}");
        Cell::of_ours(
            format!("read-write {mode}"),
            server,
            client,
            move |output| {
                let doing = match mode {
                    "write" => "received MSG_MR. writing message to remote memory...",
                    _ => "received MSG_MR. reading message from remote memory...",
                };
                let listening = format!("listening on port {port}.");
                let completed = "send completed successfully.";
                // Over iWARP a peer's disconnect can precede the last completion.
                let (output, completed) = match iwarp {
                    true => (&output.without(completed), &[][..]),
                    false => (output, &[completed; 3][..]),
                };
                let server = [
                    &listening,
                    "received connection request.",
                    doing,
                    "remote buffer: message from active/client side with pid N",
                    "peer disconnected.",
                ];
                let client = [
                    "address resolved.",
                    "route resolved.",
                    doing,
                    "remote buffer: message from passive/server side with pid N",
                    "disconnected.",
                ];
                output.exactly(
                    &[&server, completed].concat(),
                    &[&client, completed].concat(),
                )
            },
        )
    })
    .into()
}
