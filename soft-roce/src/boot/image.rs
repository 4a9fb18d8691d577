//! Decompression of kernel images.
//!
//! A distribution's `vmlinuz` decompresses itself, which under emulation takes longer than the rest of the boot. So the
//! image is decompressed here, once, and QEMU boots the ELF file through its PVH entry point. An image of another
//! format is booted unchanged.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::boot::cache;

/// Offsets in a bzImage, from the kernel's boot protocol.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// Type of the ELF note with the PVH entry point.
const XEN_ELFNOTE_PHYS32_ENTRY: u32 = 18;

/// Returns the file to boot for `image`: the decompressed image in `folder`, or `image` itself.
pub(crate) fn ensure(folder: &Path, image: &Path) -> Result<PathBuf> {
    let file = cache::ensure(folder, "vmlinux", cache::identity(image)?, || {
        let compressed =
            fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
        // An empty file records an image that must be booted unchanged.
        Ok(unpack(&compressed)
            .filter(|plain| has_pvh_entry(plain))
            .unwrap_or_default())
    })?;
    let usable = fs::metadata(&file)?.len() > 0;
    Ok(if usable { file } else { image.to_owned() })
}

/// Decompresses the payload of a bzImage; `None` for an unsupported format.
fn unpack(image: &[u8]) -> Option<Vec<u8>> {
    if image.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    let sectors = usize::from(*image.get(SETUP_SECTORS)?);
    let start = (sectors + 1) * 512 + number(image, PAYLOAD_OFFSET)?;
    let payload = image.get(start..start.checked_add(number(image, PAYLOAD_LENGTH)?)?)?;
    let mut plain = Vec::new();
    let complete = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            read(lzma_rust2::XzReader::new(payload, false), &mut plain)
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => read(
            ruzstd::decoding::StreamingDecoder::new(payload).ok()?,
            &mut plain,
        ),
        [0x1f, 0x8b, ..] => read(flate2::read::GzDecoder::new(payload), &mut plain),
        _ => return None,
    };
    complete.is_ok().then_some(plain)
}

fn read(mut from: impl Read, to: &mut Vec<u8>) -> io::Result<usize> {
    from.read_to_end(to)
}

fn number(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn has_pvh_entry(plain: &[u8]) -> bool {
    let search = || -> object::Result<bool> {
        let header = FileHeader64::<Endianness>::parse(plain)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, plain)? {
            let Some(mut notes) = segment.notes(endian, plain)? else {
                continue;
            };
            while let Some(note) = notes.next()? {
                if note.name() == b"Xen" && note.n_type(endian) == XEN_ELFNOTE_PHYS32_ENTRY {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    search().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[SETUP_SECTORS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET] = 16;
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4]
            .copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend_from_slice(&[0; 16]);
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn unpack_of_gzip_payload_returns_the_elf_file() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"\x7fELF...").unwrap();
        assert_eq!(
            unpack(&image(&encoder.finish().unwrap())).unwrap(),
            b"\x7fELF..."
        );
    }

    #[test]
    fn unpack_of_unknown_format_is_none() {
        assert_eq!(unpack(b"\x7fELF"), None);
        assert_eq!(unpack(&image(b"LZ4 or so")), None);
        assert_eq!(unpack(&image(&[])[..900]), None);
    }

    #[test]
    fn image_without_pvh_entry_is_booted_unchanged() {
        let cache = tempfile::tempdir().unwrap();
        let file = cache.path().join("vmlinuz");
        fs::write(&file, image(b"LZ4 or so")).unwrap();
        assert_eq!(ensure(cache.path(), &file).unwrap(), file);
        assert_eq!(ensure(cache.path(), &file).unwrap(), file);
    }
}
