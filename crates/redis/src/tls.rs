//! TLS (to come): certificates are read at start, handshakes run on the connection's core.

use crate::options::TlsOptions;
use crate::server::StartError;

/// Sets up TLS connections.
pub struct Acceptor;

impl Acceptor {
    /// Reads the files.
    pub fn new(_options: &TlsOptions) -> Result<Self, StartError> {
        Err(StartError::Tls { why: "not built in yet".to_string() })
    }
}
