// One processing element: two 32 x 17 multipliers (Yang 2021, figure 5), a weight in two banks, and sums of its own.
//
// upper and lower are what the line buffer makes of a word of the stream: a whole word's halves (signed upper, unsigned
// lower) or two 16-bit activations less their zero point; 17 bits hold either. Products go down the column, or, in a
// gradient's job (held), into the element's own sums, with the column's word in place of the weight.
module element (
    input  logic               clock,
    input  logic               load,
    input  logic               load_bank,
    input  logic signed [31:0] load_word,
    input  logic               bank,
    input  logic               held,
    input  logic signed [31:0] column_word,
    input  logic signed [16:0] upper,
    input  logic signed [16:0] lower,
    input  logic               sum_valid,
    input  logic               sum_first,
    input  logic               sum_last,
    output logic signed [48:0] upper_product,
    output logic signed [48:0] lower_product,
    output logic signed [63:0] upper_held,
    output logic signed [63:0] lower_held
); /* verilator no_inline_module */
    logic signed [31:0] weight0, weight1;
    logic signed [63:0] upper_sum, lower_sum;
    wire signed [31:0] factor = held ? column_word : (bank ? weight1 : weight0);
    wire signed [63:0] upper_next = (sum_first ? 64'sd0 : upper_sum) + 64'(upper_product);
    wire signed [63:0] lower_next = (sum_first ? 64'sd0 : lower_sum) + 64'(lower_product);

    always_ff @(posedge clock) begin
        if (load && !load_bank) weight0 <= load_word;
        if (load && load_bank) weight1 <= load_word;
        upper_product <= factor * upper;
        lower_product <= factor * lower;
        if (sum_valid) begin
            upper_sum <= upper_next;
            lower_sum <= lower_next;
            if (sum_last) begin
                upper_held <= upper_next;
                lower_held <= lower_next;
            end
        end
    end
endmodule
