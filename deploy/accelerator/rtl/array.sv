// SIDE x SIDE elements: an activation is broadcast along a row, products are summed down each column.
module array #(
    parameter int SIDE = 16
) (
    input  logic                    clock,
    // A line of weights, to a column (inference) or to a row (training): the transpose is in the wiring.
    input  logic [SIDE-1:0]         load_rows,
    input  logic [SIDE-1:0]         load_columns,
    input  logic                    load_bank,
    input  logic                    load_by_row,
    input  logic [SIDE*32-1:0]      load_line,
    input  logic                    bank,
    input  logic                    held,
    input  logic [SIDE*32-1:0]      column_line,
    input  logic [SIDE*17-1:0]      upper,
    input  logic [SIDE*17-1:0]      lower,
    input  logic                    sum_valid,
    input  logic                    sum_first,
    input  logic                    sum_last,
    output logic [SIDE*64-1:0]      upper_sums,
    output logic [SIDE*64-1:0]      lower_sums,
    // What the elements hold, a column of them or the first row.
    input  logic [$clog2(SIDE)-1:0] drain_column,
    input  logic                    drain_first_row,
    output logic [SIDE*64-1:0]      upper_drained,
    output logic [SIDE*64-1:0]      lower_drained
); /* verilator no_inline_module */
    wire [48:0] upper_product [0:SIDE*SIDE-1];
    wire [48:0] lower_product [0:SIDE*SIDE-1];
    wire [63:0] upper_held [0:SIDE*SIDE-1];
    wire [63:0] lower_held [0:SIDE*SIDE-1];

    genvar r, c;
    generate
        for (r = 0; r < SIDE; r = r + 1) begin : row
            for (c = 0; c < SIDE; c = c + 1) begin : column
                element unit (
                    .clock(clock),
                    .load(load_rows[r] && load_columns[c]),
                    .load_bank(load_bank),
                    .load_word(load_by_row ? load_line[c*32+:32] : load_line[r*32+:32]),
                    .bank(bank),
                    .held(held),
                    .column_word(column_line[c*32+:32]),
                    .upper(upper[r*17+:17]),
                    .lower(lower[r*17+:17]),
                    .sum_valid(sum_valid),
                    .sum_first(sum_first),
                    .sum_last(sum_last),
                    .upper_product(upper_product[r*SIDE+c]),
                    .lower_product(lower_product[r*SIDE+c]),
                    .upper_held(upper_held[r*SIDE+c]),
                    .lower_held(lower_held[r*SIDE+c])
                );
            end
        end
    endgenerate

    integer i, j;
    logic signed [63:0] upper_total, lower_total;
    always_ff @(posedge clock) begin
        for (i = 0; i < SIDE; i = i + 1) begin
            upper_total = 64'sd0;
            lower_total = 64'sd0;
            for (j = 0; j < SIDE; j = j + 1) begin
                upper_total = upper_total + 64'($signed(upper_product[j*SIDE+i]));
                lower_total = lower_total + 64'($signed(lower_product[j*SIDE+i]));
            end
            upper_sums[i*64+:64] <= upper_total;
            lower_sums[i*64+:64] <= lower_total;
        end
    end

    integer k;
    always_ff @(posedge clock)
        for (k = 0; k < SIDE; k = k + 1) begin
            upper_drained[k*64+:64] <= drain_first_row ? upper_held[k] : upper_held[k*SIDE+drain_column];
            lower_drained[k*64+:64] <= drain_first_row ? lower_held[k] : lower_held[k*SIDE+drain_column];
        end
endmodule
