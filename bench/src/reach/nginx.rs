//! nginx as a plain reverse proxy to the same target: the peer of the ingress.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

/// A running nginx; killed when dropped.
#[derive(Debug)]
pub(super) struct Nginx {
    process: Child,
    pub(super) at: SocketAddr,
}

impl Nginx {
    /// Starts it in a folder of its own.
    pub(super) fn start(binary: &Path, folder: &Path, port: u16, target: u16) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let config = folder.join("nginx.conf");
        std::fs::write(&config, configuration(folder, port, target))?;
        let process = Command::new(binary)
            .arg("-p")
            .arg(folder)
            .arg("-e")
            .arg(folder.join("error.log"))
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| {
                format!("starting {}; on Debian: apt-get install nginx-light", binary.display())
            })?;
        Ok(Self { process, at: ([127, 0, 0, 1], port).into() })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// One process, connections to the target kept, a line of log per request.
fn configuration(folder: &Path, port: u16, target: u16) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid {folder}/pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log {folder}/access.log;\n  client_body_temp_path {folder}/body;\n  \
         proxy_temp_path {folder}/proxy;\n  fastcgi_temp_path {folder}/f;\n  uwsgi_temp_path {folder}/u;\n  \
         scgi_temp_path {folder}/s;\n  keepalive_requests 1000000;\n  proxy_buffering off;\n  tcp_nodelay on;\n  \
         upstream target {{ server 127.0.0.1:{target}; keepalive 64; }}\n  \
         server {{\n    listen 127.0.0.1:{port};\n    location / {{\n      proxy_pass http://target;\n      \
         proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
    )
}
