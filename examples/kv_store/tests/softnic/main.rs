//! The store on softnic: examples of the chapter "Test your protocol", which quotes these files, and the trace of the tutorial.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

mod store;
mod trace;
