//! Programs built by Go's own compiler make system calls directly: their sockets stay TCP, and the log
//! reports the fact. Programs built by `gccgo` are not affected.

use std::slice;

use libc::{Elf64_Phdr, c_int, c_void, dl_phdr_info, size_t};

use crate::log;

/// Owner and type of the build ID note added by Go's linker.
const OWNER: &[u8] = b"Go\0\0";
const BUILD_ID: u32 = 4;

/// Whether a sequence of notes contains Go's build ID. A note has three numbers, the first two of them
/// lengths, then its owner and content, each padded to four bytes.
fn are_gos(mut notes: &[u8]) -> bool {
    while let Some((numbers, rest)) = notes.split_first_chunk::<12>() {
        let number = |at| match numbers[at..].first_chunk() {
            Some(bytes) => u32::from_ne_bytes(*bytes),
            None => 0,
        };
        let filled = |len: u32| usize::try_from(len).unwrap_or(usize::MAX).div_ceil(4) * 4;
        let (owner_len, content_len) = (filled(number(0)), filled(number(4)));
        if rest.starts_with(OWNER) && number(0) == 4 && number(8) == BUILD_ID {
            return true;
        }
        let Some(next) = rest.get(owner_len.saturating_add(content_len)..) else {
            return false;
        };
        notes = next;
    }
    false
}

/// The notes in memory: a header may also describe notes in the file alone.
fn loaded_notes(headers: &[Elf64_Phdr]) -> impl Iterator<Item = &Elf64_Phdr> {
    let is_loaded = |note: &&Elf64_Phdr| {
        headers.iter().any(|segment| {
            let end = |header: &Elf64_Phdr| header.p_vaddr.checked_add(header.p_memsz);
            let is_inside = segment.p_vaddr <= note.p_vaddr
                && end(note).is_some_and(|note| end(segment).is_some_and(|end| note <= end));
            segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_R != 0 && is_inside
        })
    };
    let notes = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE);
    notes.filter(is_loaded)
}

/// Examines the first object, the program itself, and stops.
///
/// # Safety
/// `info` is valid, and `found` points to a `bool`.
unsafe extern "C" fn examine_program(
    info: *mut dl_phdr_info,
    _: size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let info = unsafe { *info };
    // SAFETY: `dlpi_phnum` headers. Assumption: the headers and the readable segments of the program stay in memory.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let has_go = loaded_notes(headers).any(|note| {
        let start = usize::try_from(info.dlpi_addr + note.p_vaddr).unwrap_or(0);
        let len = usize::try_from(note.p_memsz).unwrap_or(0);
        let start = std::ptr::with_exposed_provenance(start);
        // SAFETY: inside of a readable segment. Assumption: the headers and the readable segments of the program stay in
        // memory.
        are_gos(unsafe { slice::from_raw_parts(start, len) })
    });
    // SAFETY: as the caller promises.
    unsafe { *found.cast::<bool>() = has_go };
    1
}

fn is_gos() -> bool {
    let mut found = false;
    // SAFETY: `found` outlives the call. Assumption: `dl_iterate_phdr` passes valid arguments, and calls only before it returns.
    unsafe { libc::dl_iterate_phdr(Some(examine_program), (&raw mut found).cast()) };
    found
}

extern "C" fn loaded() {
    if log::is_wanted() && is_gos() {
        log::write_line(|| {
            "a program of Go's own compiler calls the kernel past the C library: its sockets stay TCP and UDP; \
             built with gccgo, they use RDMA"
                .to_owned()
        });
    }
}

/// Run by the loader.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], content: &[u8], kind: u32) -> Vec<u8> {
        let mut note = Vec::new();
        for number in [owner.len(), content.len()] {
            note.extend(u32::try_from(number).unwrap().to_ne_bytes());
        }
        note.extend(kind.to_ne_bytes());
        for part in [owner, content] {
            note.extend(part);
            note.resize(note.len().div_ceil(4) * 4, 0);
        }
        note
    }

    fn header(kind: u32, flags: u32, start: u64, len: u64) -> Elf64_Phdr {
        Elf64_Phdr {
            p_type: kind,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: start,
            p_paddr: start,
            p_filesz: len,
            p_memsz: len,
            p_align: 4,
        }
    }

    #[test]
    fn notes_outside_of_loaded_segments_are_not_read() {
        let readable = header(libc::PT_LOAD, libc::PF_R, 0x1000, 0x100);
        let unreadable = header(libc::PT_LOAD, libc::PF_X, 0x2000, 0x100);
        let note = |start, len| header(libc::PT_NOTE, libc::PF_R, start, len);
        for (start, len, is_read) in [
            (0x1000, 0x100, true),
            (0x1040, 0x20, true),
            (0x10f0, 0x11, false),
            (0xff0, 0x20, false),
            (0, 0x20, false),
            (0x2000, 0x20, false),
            (0x1000, u64::MAX, false),
        ] {
            let headers = [readable, unreadable, note(start, len)];
            assert_eq!(loaded_notes(&headers).count(), usize::from(is_read));
        }
    }

    #[test]
    fn go_build_id_note_is_found_among_others() {
        let gnu = note(b"GNU\0", &[7; 21], 3);
        let go = note(b"Go\0\0", b"an-id", BUILD_ID);
        assert!(are_gos(&go) && are_gos(&[gnu.clone(), go.clone()].concat()));
        assert!(!are_gos(&gnu) && !are_gos(&note(b"Go\0\0", b"x", 1)) && !are_gos(&[]));
        for len in 0..gnu.len() + 15 {
            assert!(
                !are_gos(&[gnu.clone(), go.clone()].concat()[..len]),
                "{len}"
            );
        }
        assert!(!are_gos(&note(b"Go\0\0and", b"an-id", BUILD_ID)));
        assert!(are_gos(
            &[note(b"longer owner\0", &[], 4), go.clone()].concat()
        ));
        let endless = note(b"GNU\0", &[], u32::MAX);
        assert!(!are_gos(&[&[0xff; 12][..], &endless].concat()));
        assert!(!is_gos(), "this is Rust's");
    }
}
