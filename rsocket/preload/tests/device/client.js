// Asks the server at the address and port of the arguments again and again, by connections that are closed in between,
// so that their descriptors are used again.
const http = require('http');
const [, , host, port] = process.argv;
let left = 5;
function ask() {
  const options = { host, port, method: 'POST', agent: new http.Agent({ keepAlive: left % 2 === 0 }) };
  const request = http.request(options, response => {
    let length = 0;
    response.on('data', data => { length += data.length; });
    response.on('end', () => {
      options.agent.destroy();
      if (length !== 'got 200000 '.length + 300000) process.exit(1);
      if (--left > 0) setTimeout(ask, 1);
    });
  });
  request.end('x'.repeat(200000));
}
ask();
