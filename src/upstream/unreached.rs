//! Why no connection came about, told apart by what to do about it.

use std::io;

use crate::plain;
use crate::race::Unresolved;

/// The cause. Its text follows "cannot be reached: ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreached {
    /// The name has no address.
    #[error(transparent)]
    Name(#[from] Unresolved),
    /// The box answers, and nobody listens on the port.
    #[error("connection refused")]
    Refused,
    /// No way leads to the box, in words.
    #[error("{0}")]
    NoRoute(String),
    /// The box does not answer.
    #[error("connection timed out")]
    TimedOut,
    /// This box forbids it.
    #[error("this box does not let it connect (permission denied)")]
    Forbidden,
    /// There is nothing at the path of the socket.
    #[error("there is no socket at that path")]
    NoSocket,
    /// Nobody listens on the socket.
    #[error("nobody listens on the socket")]
    IdleSocket,
    /// The rights of the socket, or of a directory above it.
    #[error("permission denied on the socket")]
    ForbiddenSocket,
    /// Whatever else, in words.
    #[error("{0}")]
    Other(String),
}

impl Unreached {
    /// What an error of connecting to a port means.
    pub(super) fn of_port(error: &io::Error) -> Unreached {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => Unreached::Refused,
            Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => {
                Unreached::NoRoute(plain::io(error))
            }
            Kind::TimedOut => Unreached::TimedOut,
            Kind::PermissionDenied => Unreached::Forbidden,
            _ => Unreached::Other(plain::io(error)),
        }
    }

    /// What an error of connecting to a socket file means.
    pub(super) fn of_socket(error: &io::Error) -> Unreached {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::NotFound | Kind::NotADirectory => Unreached::NoSocket,
            Kind::ConnectionRefused => Unreached::IdleSocket,
            Kind::PermissionDenied => Unreached::ForbiddenSocket,
            _ => Unreached::Other(plain::io(error)),
        }
    }

    /// What to do, in a sentence or two without the last full stop.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Unreached::Name(Unresolved::Unknown(_)) => {
                "Look for a slip in the name after --upstream, and whether it is known where this program runs (getent hosts \
                 NAME). In a container that is the network of the container: the engine has to share it"
            }
            Unreached::Name(Unresolved::NoAnswer(_)) => {
                "Look whether the name servers in /etc/resolv.conf answer where this program runs, or write the engine's IP \
                 address after --upstream"
            }
            Unreached::Refused => "Is the engine up? Loading a model can take many minutes",
            Unreached::NoRoute(_) => {
                "Look at the routes between the two boxes, and whether the address after --upstream is right. In a container, \
                 whether its network leads there"
            }
            Unreached::TimedOut => "Look whether the engine's box is up, and whether a firewall drops packets",
            Unreached::Forbidden => {
                "Look for a firewall rule of this box, or for a sandbox of this program such as IPAddressDeny of its systemd \
                 unit"
            }
            Unreached::NoSocket => {
                "Look for a slip in the path after --upstream, whether the engine is up, which makes the socket, and in a \
                 container whether the socket's directory is mounted"
            }
            Unreached::IdleSocket => {
                "Is the engine up? Its socket file stays when it ends. Loading a model can take many minutes"
            }
            Unreached::ForbiddenSocket => {
                "Let this program's user write to the socket and pass the directories above it, by a common group for example"
            }
            Unreached::Other(_) => "Look whether the engine is up, and at the network between the two boxes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of Linux: ENOENT, ENOTDIR, EACCES, EPERM, ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH.
    #[test]
    fn an_error_of_the_system_has_the_cause_that_people_can_mend() {
        let of = |number| io::Error::from_raw_os_error(number);
        assert_eq!(Unreached::of_port(&of(111)), Unreached::Refused);
        assert_eq!(Unreached::of_port(&of(110)), Unreached::TimedOut);
        assert_eq!(Unreached::of_port(&of(113)), Unreached::NoRoute("no route to host".into()));
        assert_eq!(Unreached::of_port(&of(101)), Unreached::NoRoute("network is unreachable".into()));
        assert_eq!(
            (Unreached::of_port(&of(13)), Unreached::of_port(&of(1))),
            (Unreached::Forbidden, Unreached::Forbidden)
        );
        for (number, cause) in [(2, Unreached::NoSocket), (20, Unreached::NoSocket), (111, Unreached::IdleSocket)] {
            assert_eq!(Unreached::of_socket(&of(number)), cause);
        }
        assert_eq!(Unreached::of_socket(&of(13)), Unreached::ForbiddenSocket);
    }
}
