//! Kernel modules: search, load order, and decompression.
//!
//! Dependencies are read from the modules' `.modinfo` sections rather than from `modules.dep`: unpacked packages have
//! no such file, and it does not list modules built out of tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection};

/// The modules of one kernel.
#[derive(Debug)]
pub(crate) struct ModuleTree {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
    /// Whether the kernel has a list of built-in modules.
    knows_builtin: bool,
}

impl ModuleTree {
    /// Lists the modules below `folder`, a kernel's `lib/modules/RELEASE`.
    pub(crate) fn scan(folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(folder, &mut files)
            .with_context(|| format!("cannot list the modules in {}", folder.display()))?;
        let list = builtin_list(folder);
        let builtin = list.as_deref().unwrap_or_default();
        let builtin = builtin
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect();
        Ok(Self {
            files,
            builtin,
            knows_builtin: list.is_some(),
        })
    }

    /// Adds a module file outside of the kernel's folder.
    pub(crate) fn insert(&mut self, file: &Path) {
        if let Some(name) = module_name(file) {
            self.files.insert(name, file.to_owned());
        }
    }

    /// Whether the kernel has `name`, as a module or built in.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name) || self.builtin.contains(name)
    }

    /// The modules to load for `requested`, in dependency order, without built-in modules.
    pub(crate) fn load_order(&self, requested: &[&str]) -> Result<Vec<Module>> {
        order(requested, |name| self.read(name))
    }

    fn read(&self, name: &str) -> Result<Option<Module>> {
        let Some(file) = self.files.get(name) else {
            if self.builtin.contains(name) {
                return Ok(None);
            }
            if !self.knows_builtin {
                bail!(
                    "the kernel has no module {name}, and modules.builtin, the list of built-in modules, is missing: \
                     copy that file beside the modules; on Debian the package linux-base-RELEASE has it"
                );
            }
            bail!("the kernel has no module {name}");
        };
        let image =
            plain_contents(file).with_context(|| format!("cannot read {}", file.display()))?;
        let needs = dependencies(&image)
            .with_context(|| format!("{} is no kernel module", file.display()))?;
        Ok(Some(Module {
            name: name.to_owned(),
            image,
            needs,
        }))
    }
}

/// The list of built-in modules. Debian's kernels since 7.0 have the list in a separate package, below `usr/lib` if the
/// modules are below `lib`, or the reverse.
fn builtin_list(folder: &Path) -> Option<String> {
    let release = folder.file_name()?;
    let roots = folder.ancestors().skip(3);
    let elsewhere = roots.take(2).flat_map(|root| {
        ["lib/modules", "usr/lib/modules"].map(|place| root.join(place).join(release))
    });
    std::iter::once(folder.to_owned())
        .chain(elsewhere)
        .find_map(|folder| fs::read_to_string(folder.join("modules.builtin")).ok())
}

/// Whether the kernel with the modules in `folder` has `name` built in.
pub(crate) fn has_built_in(folder: &Path, name: &str) -> bool {
    let list = builtin_list(folder).unwrap_or_default();
    let mut names = list.lines().map(Path::new).filter_map(module_name);
    names.any(|built_in| built_in == name)
}

/// A module, ready to load.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    /// Name in `/sys/module`.
    pub(crate) name: String,
    /// The uncompressed object file.
    pub(crate) image: Vec<u8>,
    needs: Vec<String>,
}

/// The kernel's name for the module in `file`: `8021q_x` for `8021q-x.ko.xz`. `None` for other files.
fn module_name(file: &Path) -> Option<String> {
    let (stem, rest) = file.file_name()?.to_str()?.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".zst" | ".gz").then(|| stem.replace('-', "_"))
}

fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // `build` and `source` are symbolic links, possibly dangling.
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else if let Some(name) = module_name(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

fn plain_contents(file: &Path) -> Result<Vec<u8>> {
    let raw = fs::read(file)?;
    let mut plain = Vec::new();
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => lzma_rust2::XzReader::new(raw.as_slice(), true).read_to_end(&mut plain)?,
        Some("zst") => {
            ruzstd::decoding::StreamingDecoder::new(raw.as_slice())?.read_to_end(&mut plain)?
        }
        Some("gz") => flate2::read::GzDecoder::new(raw.as_slice()).read_to_end(&mut plain)?,
        _ => return Ok(raw),
    };
    Ok(plain)
}

/// The modules named by `depends=` in the object file's `.modinfo`.
fn dependencies(image: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(image)?;
    let section = file
        .section_by_name(".modinfo")
        .context("it has no .modinfo section")?;
    Ok(needs(section.data()?))
}

fn needs(modinfo: &[u8]) -> Vec<String> {
    let entries = modinfo
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok());
    let lists = entries.filter_map(|entry| entry.strip_prefix("depends="));
    let names = lists
        .flat_map(|list| list.split(','))
        .filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

/// Depth-first order: dependencies before dependents.
fn order(
    wanted: &[&str],
    mut read: impl FnMut(&str) -> Result<Option<Module>>,
) -> Result<Vec<Module>> {
    fn visit(
        name: &str,
        read: &mut dyn FnMut(&str) -> Result<Option<Module>>,
        seen: &mut BTreeSet<String>,
        done: &mut Vec<Module>,
    ) -> Result<()> {
        if !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(module) = read(name)? else {
            return Ok(());
        };
        for need in &module.needs {
            visit(need, read, seen, done)?;
        }
        done.push(module);
        Ok(())
    }
    let (mut seen, mut done) = (BTreeSet::new(), Vec::new());
    for name in wanted {
        visit(name, &mut read, &mut seen, &mut done)?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_list_in_either_lib_is_found() {
        for (modules, builtin) in [
            ("lib", "lib"),
            ("lib", "usr/lib"),
            ("usr/lib", "lib"),
            ("usr/lib", "usr/lib"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let folder = |lib: &str| root.path().join(lib).join("modules/7.0.1-amd64");
            fs::create_dir_all(folder(modules).join("kernel")).unwrap();
            fs::create_dir_all(folder(builtin)).unwrap();
            let error = ModuleTree::scan(&folder(modules))
                .unwrap()
                .load_order(&["virtio_pci"])
                .unwrap_err();
            assert!(error.to_string().contains("linux-base-"), "{error}");
            let list = "kernel/drivers/virtio/virtio_pci.ko\n";
            fs::write(folder(builtin).join("modules.builtin"), list).unwrap();
            let tree = ModuleTree::scan(&folder(modules)).unwrap();
            assert!(tree.has("virtio_pci"), "{modules} {builtin}");
            assert!(has_built_in(&folder(modules), "virtio_pci"));
            assert!(tree.load_order(&["virtio_pci"]).unwrap().is_empty());
        }
    }

    fn tree(name: &str) -> Result<Option<Module>> {
        let needs: &[&str] = match name {
            "rdma_rxe" => &["ib_uverbs", "ib_core", "udp_tunnel"],
            "ib_uverbs" => &["ib_core"],
            "ib_core" | "udp_tunnel" => &[],
            "ipv6" => return Ok(None),
            other => bail!("the kernel has no module {other}"),
        };
        let needs = needs.iter().map(|need| (*need).to_owned()).collect();
        Ok(Some(Module {
            name: name.to_owned(),
            image: Vec::new(),
            needs,
        }))
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn order_with_shared_dependency_lists_it_first_and_once() {
        let modules = order(&["rdma_rxe", "ib_core"], tree).unwrap();
        assert_eq!(
            names(&modules),
            ["ib_core", "ib_uverbs", "udp_tunnel", "rdma_rxe"]
        );
    }

    #[test]
    fn order_of_builtin_module_is_empty() {
        assert!(order(&["ipv6"], tree).unwrap().is_empty());
    }

    #[test]
    fn order_with_missing_module_names_it() {
        let error = order(&["siw"], tree).unwrap_err();
        assert_eq!(error.to_string(), "the kernel has no module siw");
    }

    #[test]
    fn needs_of_modinfo_are_its_depends() {
        assert_eq!(
            needs(b"license=GPL\0depends=ib_core,udp-tunnel\0retpoline=Y\0"),
            ["ib_core", "udp_tunnel"]
        );
        assert!(needs(b"depends=\0").is_empty());
    }

    #[test]
    fn module_name_of_compressed_file_has_no_suffix() {
        assert_eq!(
            module_name(Path::new("a/rdma_rxe.ko.zst")).unwrap(),
            "rdma_rxe"
        );
        assert_eq!(
            module_name(Path::new("kernel/net/udp-tunnel.ko")).unwrap(),
            "udp_tunnel"
        );
        assert_eq!(module_name(Path::new("modules.dep")), None);
    }

    #[test]
    fn plain_contents_of_gzip_file_is_decompressed() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.ko.gz");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"plain").unwrap();
        fs::write(&file, encoder.finish().unwrap()).unwrap();
        assert_eq!(plain_contents(&file).unwrap(), b"plain");
    }
}
