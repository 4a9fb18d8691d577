//! QEMU's command line.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::architecture::Architecture;
use crate::machine::{Launch, Link, PORTS, Ports};
use crate::sandbox::Writable;

/// Execution mode of the guest's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// Emulation; works everywhere.
    Tcg,
    /// Hardware virtualization.
    Kvm,
}

/// A QEMU machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) architecture: &'static Architecture,
    pub(crate) qemu: PathBuf,
    pub(crate) accelerator: Accelerator,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    /// Frequency of the emulated time-stamp counter in kHz, if usable as the guest's clock.
    pub(crate) counter: Option<u64>,
    /// Root file system of the guest.
    pub(crate) root: &'a Path,
    /// Folder of the host with write access for the guest.
    pub(crate) out: &'a Path,
    /// Link to the other guest.
    pub(crate) link: Option<Link<'a>>,
    /// Whether the guest uses this process's terminal.
    pub(crate) terminal: bool,
}

/// The device of hardware virtualization.
const KVM: &str = "/dev/kvm";

/// The device that discards writes.
const NULL: &str = "/dev/null";

/// Kernel parameters: warnings and errors on the console, and power-off on a panic. The second line only shortens the
/// boot.
const KERNEL_PARAMETERS: &str = "loglevel=5 panic=-1 oops=panic random.trust_cpu=on \
    nokaslr cryptomgr.notests audit=0 apparmor=0 selinux=0";

impl Machine<'_> {
    /// The start of the machine.
    ///
    /// # Errors
    ///
    /// The file for the packets cannot be made.
    pub(crate) fn launch(&self, ports: &Ports) -> Result<Launch> {
        let mut files = vec![NULL.into()];
        if self.accelerator == Accelerator::Kvm {
            files.push(KVM.into());
        }
        if let Some(pcap) = self.link.as_ref().and_then(|link| link.pcap) {
            // QEMU may write the file, and make none.
            File::create(pcap).with_context(|| format!("cannot write {}", pcap.display()))?;
            files.push(pcap.to_owned());
        }
        let writable = Writable {
            folders: vec![self.out.to_owned()],
            files,
        };
        Ok(Launch {
            command: self.command(ports),
            writable,
            private: None,
        })
    }

    fn command(&self, ports: &Ports) -> Command {
        let mut command = Command::new(&self.qemu);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-machine",
            self.architecture.machine,
        ]);
        match self.accelerator {
            Accelerator::Tcg => command.args([
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                self.architecture.emulated_cpu,
            ]),
            Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
        };
        command.arg("-m").arg(self.memory_mib.to_string());
        command.arg("-smp").arg(self.cpus.to_string());
        command
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.initramfs);
        let mut parameters = format!(
            "{} {KERNEL_PARAMETERS}",
            self.architecture.kernel_parameters
        );
        if let (Some(khz), Accelerator::Tcg) = (self.counter, self.accelerator) {
            parameters = format!("{parameters} tsc=reliable tsc_early_khz={khz}");
        }
        command.args(["-append", &parameters]);

        command
            .arg("-chardev")
            .arg(socket("console", &ports.console));
        command.args(["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        if self.terminal {
            command.args([
                "-chardev",
                "stdio,id=terminal,signal=off",
                "-device",
                "virtconsole,chardev=terminal",
            ]);
        }
        for (name, fd) in PORTS.iter().zip(&ports.ports) {
            command.arg("-chardev").arg(socket(name, fd));
            command
                .arg("-device")
                .arg(format!("virtserialport,chardev={name},name={name}"));
        }

        self.share_files(&mut command);
        if let Some(link) = &self.link {
            connect(&mut command, link);
        }
        command
    }

    fn share_files(&self, command: &mut Command) {
        let host = Path::new("/");
        share(command, "root", self.root, ",readonly=on");
        if self.root != host {
            share(command, "host", host, ",readonly=on");
        }
        share(command, "out", self.out, "");
    }
}

/// Attaches a network device to the link, with a packet capture if requested.
fn connect(command: &mut Command, link: &Link<'_>) {
    let fd = link.socket.as_raw_fd();
    // `socket,fd=` works in every QEMU since 0.12; `stream` only since 7.2.
    command
        .arg("-netdev")
        .arg(format!("socket,id=link,fd={fd}"));
    let nic = format!(
        "virtio-net-pci,netdev=link,mac={},host_mtu={},romfile=",
        link.mac, link.mtu
    );
    command.arg("-device").arg(nic);
    if let Some(file) = link.pcap {
        command
            .arg("-object")
            .arg(with_path("filter-dump,id=dump,netdev=link,file=", file, ""));
    }
}

fn socket(id: &str, fd: &OwnedFd) -> String {
    format!("socket,id={id},fd={}", fd.as_raw_fd())
}

/// Shares a folder by 9p.
fn share(command: &mut Command, tag: &str, folder: &Path, more: &str) {
    let more = format!(",security_model=none,multidevs=remap{more}");
    command
        .arg("-fsdev")
        .arg(with_path(&format!("local,id={tag},path="), folder, &more));
    command
        .arg("-device")
        .arg(format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
}

/// An option with a path in it. QEMU requires commas in the path to be doubled.
fn with_path(before: &str, path: &Path, after: &str) -> OsString {
    let mut text = OsString::from(before);
    text.push(path.as_os_str().to_string_lossy().replace(',', ",,"));
    text.push(after);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::X86_64;
    use std::os::unix::net::UnixStream;

    fn descriptor() -> OwnedFd {
        UnixStream::pair().unwrap().0.into()
    }

    fn arguments(accelerator: Accelerator, link: Option<Link<'_>>) -> Vec<String> {
        arguments_with_root("/", accelerator, link)
    }

    fn arguments_with_root(
        root: &str,
        accelerator: Accelerator,
        link: Option<Link<'_>>,
    ) -> Vec<String> {
        let machine = Machine {
            architecture: &X86_64,
            qemu: "qemu".into(),
            accelerator,
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            memory_mib: 512,
            cpus: 2,
            counter: Some(2_445_000),
            root: Path::new(root),
            out: Path::new("/a,b"),
            link,
            terminal: false,
        };
        let ports = Ports {
            console: descriptor(),
            ports: std::array::from_fn(|_| descriptor()),
        };
        let command = machine.command(&ports);
        command
            .get_args()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn emulation_does_not_use_the_host_cpu_model() {
        let arguments = arguments(Accelerator::Tcg, None).join(" ");
        assert!(
            arguments.contains("-accel tcg,thread=multi -cpu max,la57=off"),
            "{arguments}"
        );
        assert!(!arguments.contains("-netdev"), "{arguments}");
    }

    #[test]
    fn reliable_tsc_is_set_only_under_emulation() {
        for (accelerator, vouched) in [(Accelerator::Tcg, true), (Accelerator::Kvm, false)] {
            let arguments = arguments(accelerator, None).join(" ");
            assert_eq!(
                arguments.contains("tsc=reliable tsc_early_khz=2445000"),
                vouched,
                "{arguments}"
            );
        }
    }

    #[test]
    fn path_with_commas_has_them_doubled() {
        let arguments = arguments(Accelerator::Kvm, None).join(" ");
        assert!(
            arguments.contains("path=/a,,b,security_model=none"),
            "{arguments}"
        );
        assert!(
            arguments.contains("path=/,security_model=none,multidevs=remap,readonly=on"),
            "{arguments}"
        );
    }

    #[test]
    fn other_root_is_shared_beside_the_host_files() {
        let arguments = arguments_with_root("/r", Accelerator::Tcg, None).join(" ");
        for shared in ["id=root,path=/r,", "id=host,path=/,"] {
            assert!(arguments.contains(shared), "{arguments}");
        }
    }

    #[test]
    fn link_has_mtu_and_packet_dump() {
        let socket = descriptor();
        let link = Link {
            socket: &socket,
            mac: "52:54:00:09:00:01".to_owned(),
            mtu: 4200,
            pcap: Some(Path::new("/x.pcap")),
        };
        let arguments = arguments(Accelerator::Tcg, Some(link)).join(" ");
        assert!(arguments.contains("host_mtu=4200"), "{arguments}");
        assert!(
            arguments.contains("filter-dump,id=dump,netdev=link,file=/x.pcap"),
            "{arguments}"
        );
    }
}
