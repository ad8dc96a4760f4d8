// A memory of lines: one read port (its result a cycle later) and one write port, BRAM or URAM.
module memory #(
    parameter int WIDTH = 512,
    parameter int DEPTH = 1024,
    parameter IMAGE = ""
) (
    input  logic                     clock,
    input  logic [$clog2(DEPTH)-1:0] read_address,
    output logic [WIDTH-1:0]         read_line,
    input  logic                     write,
    input  logic [$clog2(DEPTH)-1:0] write_address,
    input  logic [WIDTH-1:0]         write_line
); /* verilator no_inline_module */
    logic [WIDTH-1:0] cells [0:DEPTH-1];
    initial if (IMAGE != "") $readmemh(IMAGE, cells);
    always_ff @(posedge clock) begin
        read_line <= cells[read_address];
        if (write) cells[write_address] <= write_line;
    end
endmodule
