// A web server at the address and port of the arguments, that counts what it is sent, and answers with much.
const http = require('http');
const [, , host, port] = process.argv;
http.createServer((request, response) => {
  let length = 0;
  request.on('data', data => { length += data.length; });
  request.on('end', () => response.end(`got ${length} ${'y'.repeat(300000)}`));
}).listen(Number(port), host);
