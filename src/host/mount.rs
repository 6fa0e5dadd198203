//! Which mount a path lies on, and whether that is a network's.
//!
//! Told from the kernel's own list (`<procfs>/self/mountinfo`), which answers even where the mount itself is
//! dead. A path is first looked up as it is spelled, so that nothing on a dead mount needs to be touched to know
//! that it is a network's; only a path that seems local has its symbolic links resolved.

use std::fs;
use std::path::{Path, PathBuf};

use crate::plain;

/// A mount, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type of the file system, in the kernel's spelling: `ext4`, `nfs4`, `fuse.sshfs` …
    pub kind: String,
}

/// File systems whose files lie on other machines. FUSE is on the list because what is behind it is not known;
/// `fuseblk` is not, it always has a block device behind it.
const NETWORK: [&str; 19] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "orangefs",
    "panfs",
    "pvfs2",
    "smb3",
    "smbfs",
    "wekafs",
];

impl Mount {
    /// Whether its files lie on another machine, as far as its type tells.
    pub fn is_network(&self) -> bool {
        NETWORK.contains(&self.kind.as_str()) || self.kind.starts_with("fuse.")
    }
}

/// The mount that a path lies on. The error is a sentence.
pub(super) fn read(procfs: &Path, path: &Path) -> Result<Mount, String> {
    let list = procfs.join("self/mountinfo");
    let text = fs::read(&list).map_err(|error| format!("{} cannot be read: {}", list.display(), plain::io(&error)))?;
    let text = String::from_utf8_lossy(&text);
    let spelled = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let unknown = || format!("{} lists no mount above {}", list.display(), path.display());
    let mount = understand(&text, &spelled).ok_or_else(unknown)?;
    if mount.is_network() {
        return Ok(mount);
    }
    // A path that is not there has no links to resolve.
    let real = fs::canonicalize(&spelled).unwrap_or(spelled);
    understand(&text, &real).ok_or_else(unknown)
}

/// Whether a process file system is mounted so that it hides the processes of other users (`hidepid`).
pub(super) fn hides_processes(procfs: &Path) -> bool {
    let text = fs::read(procfs.join("self/mountinfo")).unwrap_or_default();
    let point = std::path::absolute(procfs).unwrap_or_else(|_| procfs.to_owned());
    hides(&String::from_utf8_lossy(&text), &point)
}

/// Older kernels write a number, newer ones a word; `off` hides nothing. Of several mounts at one point the last counts.
fn hides(mountinfo: &str, procfs: &Path) -> bool {
    let here = |line: &&str| mount(line).is_some_and(|mount| mount.kind == "proc" && mount.point == procfs);
    let options = mountinfo.lines().rfind(here).and_then(|line| line.rsplit(' ').next());
    let hidepid = options.and_then(|options| options.split(',').find_map(|option| option.strip_prefix("hidepid=")));
    hidepid.is_some_and(|how| !["0", "off"].contains(&how))
}

/// The mount with the longest point above the path; of several at one point the last covers the others.
fn understand(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(mount);
    mounts.filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
}

/// `id parent major:minor root point options optional-fields… - kind source options`
fn mount(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let point = front.split(' ').nth(4)?;
    let kind = back.split(' ').next()?;
    Some(Mount { point: unescape(point).into(), kind: kind.to_owned() })
}

/// The kernel writes space, tab, line end and backslash as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proc_that_hides_the_processes_of_others_says_so_in_its_options() {
        let line = |options: &str| format!("22 27 0:21 / /proc rw,nosuid shared:5 - proc proc {options}\n");
        for hiding in ["rw,hidepid=2", "rw,gid=998,hidepid=invisible", "rw,hidepid=1,gid=5", "rw,hidepid=ptraceable"] {
            assert!(hides(&line(hiding), Path::new("/proc")), "{hiding}");
        }
        for open in ["rw", "rw,hidepid=0", "rw,hidepid=off", "rw,gid=7"] {
            assert!(!hides(&line(open), Path::new("/proc")), "{open}");
        }
        assert!(!hides(&line("rw,hidepid=2"), Path::new("/host/proc")));
        assert!(!hides(&(line("rw,hidepid=2") + &line("rw")), Path::new("/proc")), "the last one covers the first");
    }

    /// A box with a local disk, network mounts, a bind mount and a point that is mounted over.
    const MOUNTINFO: &str = "\
22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 27 259:5 / /kv rw,noatime shared:20 master:3 - xfs /dev/nvme1n1 rw,attr2
41 40 0:50 / /kv/shared rw,relatime - nfs4 filer:/export/kv rw,vers=4.2,hard
42 27 0:51 / /mnt/my\\040pool\\134x rw - fuse.mergerfs a:b rw
43 27 8:1 / /mnt/ntfs rw - fuseblk /dev/sda1 rw
44 27 0:52 / /over rw - ext4 /dev/sdb rw
45 44 0:53 / /over rw shared:9 - cifs //nas/kv rw
46 27 0:54 /vol/a /lustre rw - lustre 10.0.0.1@o2ib:/l rw
not a line of the kernel
";

    fn kind(path: &str) -> Option<String> {
        understand(MOUNTINFO, Path::new(path)).map(|mount| mount.kind)
    }

    #[test]
    fn the_longest_point_above_a_path_is_its_mount_and_the_last_one_covers() {
        for (path, expected) in [
            ("/var/kv", "ext4"),
            ("/kv", "xfs"),
            ("/kv/tier", "xfs"),
            ("/kv/shared", "nfs4"),
            ("/kv/shared/a/b", "nfs4"),
            ("/kvs", "ext4"),
            ("/mnt/my pool\\x/kv", "fuse.mergerfs"),
            ("/over/kv", "cifs"),
        ] {
            assert_eq!(kind(path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(understand("", Path::new("/kv")), None);
        let point = understand(MOUNTINFO, Path::new("/kv/shared/a")).map(|mount| mount.point);
        assert_eq!(point, Some("/kv/shared".into()));
    }

    #[test]
    fn network_mounts_are_known_by_their_type() {
        let is_network = |kind: &str| Mount { point: "/".into(), kind: kind.into() }.is_network();
        let network = "nfs nfs4 cifs smb3 9p ceph lustre beegfs gpfs glusterfs fuse fuse.sshfs fuse.s3fs fuse.juicefs";
        let local = "ext4 xfs btrfs zfs tmpfs overlay bcachefs f2fs vfat fuseblk nfsd autofs";
        assert!(network.split(' ').all(is_network));
        assert!(!local.split(' ').any(is_network));
    }

    #[test]
    fn a_path_is_looked_up_as_spelled_first_and_through_its_links_then() {
        let root = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(root.path()).unwrap();
        fs::create_dir_all(base.join("proc/self")).unwrap();
        fs::create_dir(base.join("far")).unwrap();
        std::os::unix::fs::symlink(base.join("far"), base.join("near")).unwrap();
        let show = |path: &Path| path.display().to_string();
        let far = show(&base.join("far"));
        let dead = show(&base.join("dead"));
        let list =
            format!("1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {far} rw - ceph b rw\n3 1 0:8 / {dead} rw - nfs c rw\n");
        fs::write(base.join("proc/self/mountinfo"), list).unwrap();
        let kind = |name: &str| read(&base.join("proc"), &base.join(name)).unwrap().kind;
        assert_eq!((kind("near/kv"), kind("near")), ("ext4".into(), "ceph".into()), "a missing end has no links");
        assert_eq!((kind("dead/kv"), kind("elsewhere")), ("nfs".into(), "ext4".into()));
        let error = read(&base.join("no-proc"), &base).unwrap_err();
        assert!(error.contains("no-proc/self/mountinfo cannot be read"), "{error}");
    }

    #[test]
    fn the_kernel_s_own_list_names_the_mount_of_proc() {
        assert_eq!(read(Path::new("/proc"), Path::new("/proc/self")).unwrap().kind, "proc");
    }
}
