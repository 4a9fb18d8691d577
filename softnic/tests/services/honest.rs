//! The honest client of a listener of `rsocket`.

use std::io::{self, Read, Write};

use rsocket::Options;
use softnic::Host;

use crate::{ADDR, TEST_TIMEOUT};

/// Asks the server for an echo.
pub(crate) fn ask(host: &Host) -> io::Result<Vec<u8>> {
    host.run(|| {
        let mut stream = Options::new().connect_timeout(TEST_TIMEOUT).connect(ADDR)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT));
        stream.write_all(b"hello")?;
        let mut answer = vec![0; 5];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    })
}
